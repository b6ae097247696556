"""One episode from start to end: model and environment in turn, to one trajectory.

Whatever goes wrong in a hook or the engine ends this episode with a status and its cause, and nothing else.
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from models.chat import ChatFormat
from rollout.agents import Action, ConversationAgentBase
from rollout.cast import Cast
from rollout.engine import Completion, Engine, Request, Sampling
from rollout.environments import BaseTaskEnv, StepResult
from rollout.hooks import call, detach, within
from rollout.rewards import Reward, check_score
from rollout.stream import TokenStream
from schemas import seeds
from schemas.config import Run
from schemas.data import Task
from schemas.digest import digest
from schemas.errors import RunStopped
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

    @property
    def id(self) -> str:
        return f"{self.group}-{self.sample}-{self.attempt}"

    def next_attempt(self) -> "Job":
        return replace(self, attempt=self.attempt + 1)


class EpisodeEnded(Exception):
    """The episode is over before the environment said so."""

    def __init__(self, status: Status, detail: str = "") -> None:
        super().__init__(detail)
        self.status, self.detail = status, _plain(detail)[:DETAIL_CHARACTERS]


@dataclass
class Episode:
    """What has happened so far."""

    job: Job
    agent: ConversationAgentBase | None = None
    stream: TokenStream = field(default_factory=TokenStream)
    turns: list[Turn] = field(default_factory=list)
    reward: Reward = field(default_factory=Reward)
    status: Status = Status.SUCCEEDED
    detail: str = ""

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self.agent.messages) if self.agent else ()


class TrajectoryCollectEngine:
    """Plays episodes with one engine, chat format and cast; holds no state between them."""

    def __init__(
        self,
        engine: Engine,
        chat: ChatFormat,
        cast: Cast,
        config: Run,
        *,
        run: str,
        seed: int,
        worker: str,
        temperature: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._chat, self._cast = engine, chat, cast
        self._limits, self._rollout = config.environment, config.rollout
        self._run, self._seed, self._worker, self._temperature = run, seed, worker, temperature
        self._clock = clock

    async def collect(self, job: Job) -> Trajectory:
        """The trajectory of one attempt, whatever became of it. Cancelling gives the episode up without one."""
        episode = Episode(job)
        session = f"{self._worker}/{job.id}"
        try:
            async with asyncio.timeout(self._rollout.episode_seconds):
                await self._play(episode, session)
        except EpisodeEnded as end:
            episode.status, episode.detail = end.status, end.detail
        except TimeoutError:
            detail = f"the episode took longer than rollout.episode_seconds = {self._rollout.episode_seconds:g}"
            episode.status, episode.detail = Status.TIMEOUT, detail
        finally:
            self._engine.release(session)
        return self._trajectory(episode)

    async def _play(self, episode: Episode, session: str) -> None:
        agent = episode.agent = await self._hook("the agent's constructor", call(self._cast.make_agent))
        env = await self._hook("the environment's constructor", call(self._cast.make_environment, episode.job.task))
        try:
            await self._converse(episode, agent, env, session)
        except asyncio.CancelledError:
            detach(asyncio.ensure_future(within(self._limits.step_seconds, call(env.close))))
            raise
        except EpisodeEnded as end:
            episode.status, episode.detail = end.status, end.detail
        await self._close(episode, env)

    async def _close(self, episode: Episode, env: BaseTaskEnv) -> None:
        """A failure here counts, unless the episode has failed already: the first cause is kept."""
        try:
            await self._hook("close", call(env.close))
        except EpisodeEnded:
            if not episode.detail:
                raise

    async def _converse(self, episode: Episode, agent: ConversationAgentBase, env: BaseTaskEnv, session: str) -> None:
        stream = episode.stream
        first = self._observed(await self._hook("reset", call(env.reset)), "reset")
        opening = await self._hook("the agent's start", call(agent.start, first))
        stream.feed(self._written(self._chat.prompt, opening, agent.tool_specs))
        for number in range(self._limits.max_turns):
            completion, span = await self._sample(episode, session, number)
            parsed = self._chat.parse(completion.token_ids)
            action = await self._hook("the agent's turn", call(agent.update_from_model, parsed))
            if completion.finish != "stop":
                self._note(episode, completion, span)
                raise EpisodeEnded(Status.MAX_TOKENS)
            result = await self._step(episode, env, action, completion, span)
            if result.done:
                await self._score(episode, env)
                return
            answer = await self._hook("the agent's turn", call(agent.update_from_env, result.messages))
            if number + 1 < self._limits.max_turns:
                self._continue(stream, answer)
        raise EpisodeEnded(Status.MAX_TURNS)

    async def _sample(self, episode: Episode, session: str, turn: int) -> tuple[Completion, tuple[int, int]]:
        job, stream = episode.job, episode.stream
        room = self._rollout.max_length - len(stream.tokens)
        if room < 1:
            raise EpisodeEnded(Status.MAX_TOKENS, self._full(stream))
        sampling = Sampling(min(self._rollout.max_tokens_per_turn, room), self._temperature, self._chat.stop_ids)
        seed = seeds.request(self._seed, job.group, job.sample, job.attempt, turn)
        try:
            completion = await self._engine.generate(Request(session, tuple(stream.tokens), sampling, seed))
            return completion, stream.sampled(completion)
        except Exception as error:
            raise EpisodeEnded(Status.ENGINE_ERROR, _cause("the engine", error)) from error

    def _full(self, stream: TokenStream) -> str:
        """An episode that never got to speak is told why."""
        if any(stream.mask):
            return ""
        return f"the prompt has {len(stream.tokens)} tokens, rollout.max_length is {self._rollout.max_length}"

    def _written(self, write: Callable[..., list[int]], *parts: Any) -> list[int]:
        """Messages as tokens; what the chat format refuses, the environment should not have said."""
        try:
            return write(*parts)
        except Exception as error:
            raise EpisodeEnded(Status.ENVIRONMENT_ERROR, _cause("the chat format", error)) from error

    def _continue(self, stream: TokenStream, messages: Sequence[Message]) -> None:
        ids = self._written(self._chat.continuation, messages)
        if len(stream.tokens) + len(ids) >= self._rollout.max_length:
            raise EpisodeEnded(Status.MAX_TOKENS)
        stream.feed(ids)

    async def _step(
        self, episode: Episode, env: BaseTaskEnv, action: Action, completion: Completion, span: tuple[int, int]
    ) -> StepResult:
        began = self._clock()
        try:
            result = await self._hook("step", call(env.step, action))
        finally:
            self._note(episode, completion, span, tool_seconds=self._clock() - began)
        checked = self._checked(result)
        episode.turns[-1] = replace(episode.turns[-1], reward=checked.reward)
        episode.reward = Reward(episode.reward.total + checked.reward)
        return checked

    def _checked(self, result: object) -> StepResult:
        """A step's result, if it is one."""
        if not isinstance(result, StepResult):
            raise EpisodeEnded(Status.ENVIRONMENT_ERROR, f"step returned {type(result).__name__}, not a StepResult")
        if not isinstance(result.done, bool | np.bool_):
            raise EpisodeEnded(Status.ENVIRONMENT_ERROR, f"step's done is {type(result.done).__name__}, not a bool")
        reward = self._scored(result.reward, "a step's reward").total
        return StepResult(self._observed(result.messages, "step"), reward, bool(result.done))

    def _note(self, episode: Episode, completion: Completion, span: tuple[int, int], tool_seconds: float = 0.0) -> None:
        turn = Turn(*span, 0.0, completion.generate_seconds, completion.queue_seconds, tool_seconds)
        episode.turns.append(turn)

    async def _score(self, episode: Episode, env: BaseTaskEnv) -> None:
        """Ask for the final reward; it belongs to the last turn."""
        hook = call(env.reward, episode.messages)
        value = await self._hook("reward", hook, self._limits.reward_seconds)
        score = self._scored(value, self._cast.config.reward)
        last = episode.turns[-1]
        episode.turns[-1] = replace(last, reward=last.reward + score.total)
        steps = episode.reward.total
        extra = (("steps", steps),) if steps else ()
        episode.reward = Reward(steps + score.total, (*score.components, *extra))

    def _scored(self, value: object, name: str) -> Reward:
        try:
            return check_score(value, name)
        except ValueError as error:
            raise EpisodeEnded(Status.ENVIRONMENT_ERROR, str(error)) from error

    def _observed(self, messages: object, where: str) -> list[Message]:
        """The messages of an observation, checked."""
        if not isinstance(messages, list | tuple) or not all(isinstance(m, Message) for m in messages):
            raise EpisodeEnded(
                Status.ENVIRONMENT_ERROR, f"{where} returned {type(messages).__name__}, not a list of Messages"
            )
        if not all(isinstance(m.content, str) for m in messages):
            raise EpisodeEnded(Status.ENVIRONMENT_ERROR, f"{where} returned a message whose content is not text")
        size = sum(len(m.content) for m in messages)
        if size > self._limits.max_observation:
            limit = f"environment.max_observation is {self._limits.max_observation}"
            raise EpisodeEnded(Status.FLOODED, f"{where} returned {size} characters, {limit}")
        return [replace(m, content=_plain(m.content)) for m in messages]

    async def _hook(self, what: str, hook: Coroutine[Any, Any, Any], seconds: float | None = None) -> Any:
        """The result of a hook within its deadline; its failure ends the episode."""
        seconds = seconds or self._limits.step_seconds
        try:
            return await within(seconds, hook)
        except TimeoutError as error:
            raise EpisodeEnded(Status.ENVIRONMENT_TIMEOUT, f"{what} took longer than {seconds:g} s") from error
        except RunStopped:
            raise
        except Exception as error:
            raise EpisodeEnded(Status.ENVIRONMENT_ERROR, _cause(what, error)) from error

    def _trajectory(self, episode: Episode) -> Trajectory:
        job, stream = episode.job, episode.stream
        return Trajectory(
            id=job.id,
            run=self._run,
            group=job.group,
            sample=job.sample,
            attempt=job.attempt,
            task_id=job.task.id,
            task_digest=task_digest(job.task),
            seed=seeds.request(self._seed, job.group, job.sample, job.attempt, 0),
            worker=self._worker,
            tokens=tuple(stream.tokens),
            mask=tuple(stream.mask),
            logprobs=tuple(stream.logprobs),
            version_starts=tuple(stream.version_starts),
            versions=tuple(stream.versions),
            segment_starts=(0,),
            turns=tuple(episode.turns),
            reward=episode.reward.total,
            components=episode.reward.components,
            status=str(episode.status),
            detail=episode.detail,
            generate_seconds=sum(t.generate_seconds for t in episode.turns),
            tool_seconds=sum(t.tool_seconds for t in episode.turns),
            queue_seconds=sum(t.queue_seconds for t in episode.turns),
            messages=json.dumps([to_json(m) for m in episode.messages]),
            sampling=json.dumps(self._sampling()),
        )

    def _sampling(self) -> dict[str, float | int]:
        return {
            "temperature": self._temperature,
            "max_tokens_per_turn": self._rollout.max_tokens_per_turn,
            "max_length": self._rollout.max_length,
        }


def task_digest(task: Task) -> str:
    """SHA-256 of everything a task says."""
    return digest({"id": task.id, "prompt": task.prompt, "answer": task.answer, "extra": task.extra})


def _cause(what: str, error: Exception) -> str:
    return f"{what} raised {type(error).__name__}: {error}"


def _plain(text: str) -> str:
    """Text that can be stored as UTF-8: lone surrogates become '?'."""
    return text.encode("utf-8", errors="replace").decode()
