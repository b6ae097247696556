"""One attempt at one sample: what is to be played, what has happened so far, and the row it becomes."""

import asyncio
import json
from dataclasses import dataclass, field, replace
from typing import Any

from rollout.agents import ConversationAgentBase
from rollout.engine import Completion
from rollout.rewards import Reward
from rollout.stream import TokenStream
from schemas.data import Task
from schemas.digest import digest
from schemas.messages import Message, to_json
from schemas.trajectory import Status, Trajectory, Turn

DETAIL_CHARACTERS = 500


@dataclass(frozen=True)
class Job:
    """One attempt at one sample of a group."""

    group: int
    sample: int
    attempt: int
    task: Task
    refused: str = ""
    """Why it is not played at all; its row says so."""

    @property
    def id(self) -> str:
        return f"{self.group}-{self.sample}-{self.attempt}"

    def next_attempt(self) -> "Job":
        return replace(self, attempt=self.attempt + 1)


class EpisodeEnded(Exception):
    """The episode is over before the environment said so."""

    def __init__(self, status: Status, detail: str = "") -> None:
        super().__init__(detail)
        self.status, self.detail = status, plain(detail)[:DETAIL_CHARACTERS]


@dataclass
class Episode:
    """What has happened so far."""

    job: Job
    agent: ConversationAgentBase | None = None
    said: tuple[Message, ...] = ()
    """The conversation, where no agent keeps one."""
    stream: TokenStream = field(default_factory=TokenStream)
    segment_starts: tuple[int, ...] = (0,)
    asked: tuple[dict[str, Any], ...] = ()
    """What each turn's request said of sampling, where a program made it."""
    turns: list[Turn] = field(default_factory=list)
    reward: Reward = field(default_factory=Reward)
    status: Status = Status.SUCCEEDED
    detail: str = ""
    deadline: asyncio.Timeout | None = None

    def allow(self, seconds: float) -> None:
        """Let what is left of it last so long, where its deadline would come before: an episode that acted until the
        last moment is scored like any other."""
        if self.deadline is not None and (end := self.deadline.when()) is not None:
            self.deadline.reschedule(max(end, asyncio.get_running_loop().time() + seconds))

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self.agent.messages) if self.agent else self.said

    def ended(self, end: EpisodeEnded) -> None:
        """Note how it ended."""
        self.status, self.detail = end.status, end.detail

    def turn(self, completion: Completion, span: tuple[int, int], tool_seconds: float = 0.0) -> None:
        """Note a sampled turn; its reward comes later."""
        turn = Turn(*span, 0.0, completion.generate_seconds, completion.queue_seconds, tool_seconds)
        self.turns.append(turn)

    def earned(self, reward: Reward) -> None:
        """Add a reward to the last turn and to the total."""
        last = self.turns[-1]
        self.turns[-1] = replace(last, reward=last.reward + reward.total)
        self.reward = Reward(self.reward.total + reward.total, (*self.reward.components, *reward.components))

    def trajectory(self, *, run: str, worker: str, seed: int, sampling: dict[str, Any]) -> Trajectory:
        """The episode as a row. `seed` is that of its first request."""
        job, stream = self.job, self.stream
        return Trajectory(
            id=job.id,
            run=run,
            group=job.group,
            sample=job.sample,
            attempt=job.attempt,
            task_id=job.task.id,
            task_digest=task_digest(job.task),
            seed=seed,
            worker=worker,
            tokens=tuple(stream.tokens),
            mask=tuple(stream.mask),
            logprobs=tuple(stream.logprobs),
            version_starts=tuple(stream.version_starts),
            versions=tuple(stream.versions),
            segment_starts=self.segment_starts,
            turns=tuple(self.turns),
            reward=self.reward.total,
            components=self.reward.components,
            status=str(self.status),
            detail=self.detail,
            generate_seconds=sum(t.generate_seconds for t in self.turns),
            tool_seconds=sum(t.tool_seconds for t in self.turns),
            queue_seconds=sum(t.queue_seconds for t in self.turns),
            messages=json.dumps([to_json(m) for m in self.messages], default=str),
            sampling=json.dumps(sampling | ({"asked": self.asked} if any(self.asked) else {})),
        )


def task_digest(task: Task) -> str:
    """SHA-256 of everything a task says."""
    return digest({"id": task.id, "prompt": task.prompt, "answer": task.answer, "extra": task.extra})


def plain(text: str) -> str:
    """Text that can be stored as UTF-8: lone surrogates become '?'."""
    return text.encode("utf-8", errors="replace").decode()
