"""Whether the reward tells right from wrong: every task's gold answer is solved, and a wrong answer is not.

Each is an episode without a model, so a mistake in data, environment, reward or limits shows before any training.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from models.spans import Span, spans
from rollout import hooks
from rollout.episode import Job
from rollout.gold import Prompter
from schemas.data import Task
from schemas.errors import RequestError
from schemas.trajectory import Status, Trajectory
from storage.rows import read_tasks
from tasks.fit import read_tokenizer
from tasks.request import Request, task_files

AT_ONCE = 64
LIMITS = {
    str(Status.MAX_TOKENS): "raise rollout.max_tokens_per_turn",
    str(Status.MAX_CONTEXT): "raise rollout.max_length",
    str(Status.MAX_TURNS): "raise environment.max_turns",
    str(Status.MAX_TOOL_SECONDS): "raise environment.tool_seconds",
}
"""What helps where a limit ended a gold episode."""


@dataclass(frozen=True)
class Proven:
    """A task file, and how many of its tasks were played with their gold answer and with a wrong one."""

    setting: str
    file: str
    tasks: int
    gold: int
    unknown: int
    """Tasks that were looked at and of which the environment knows no gold answer."""


@dataclass(frozen=True)
class Example:
    """The gold episode of one task as the model and the loss see it."""

    task: str
    spans: list[Span]


@dataclass(frozen=True)
class Proof:
    """What was played."""

    files: list[Proven]
    example: Example | None


def prove(request: Request, limit: int | None = None) -> Proof:
    """Play the gold answer and a wrong one of every task, or of the first `limit` of every file.

    RequestError names the first task, and its file, whose gold answer is not solved or whose wrong answer is.
    """
    return asyncio.run(_prove(request, limit))


async def _prove(request: Request, limit: int | None) -> Proof:
    tokenizer = read_tokenizer(request)
    prompter = Prompter(request.config, str(request.folder), tokenizer)
    files, example = [], None
    try:
        for setting, name in task_files(request.config).items():
            file = request.data[setting]
            tasks = read_tasks(file.data, file.suffix, file.where)
            rows = await _file(prompter, f"{setting} ({name})", tasks[:limit])
            known = [row for row in rows if row is not None]
            files.append(Proven(setting, name, len(tasks), len(known), len(rows) - len(known)))
            if known and example is None:
                row = known[0]
                example = Example(row.task_id, spans(row.tokens, row.mask, tokenizer, prompter.chat))
    finally:
        await hooks.settle(1.0)
        await prompter.close()
    return Proof(files, example)


async def _file(prompter: Prompter, where: str, tasks: Sequence[Task]) -> list[Trajectory | None]:
    """The gold episodes of a file's tasks; None for a task without a known one."""
    rows: list[Trajectory | None] = []
    rest = iter(tasks)
    while part := list(islice(rest, AT_ONCE)):
        found = await asyncio.gather(*(_task(prompter, where, task) for task in part), return_exceptions=True)
        for one in found:  # the first in the file's order, whichever failed first
            if isinstance(one, BaseException):
                raise one
            rows.append(one)
    return rows


async def _task(prompter: Prompter, where: str, task: Task) -> Trajectory | None:
    turns = await prompter.gold(task, where)
    if not turns:
        return None
    row = await prompter.say(Job(0, 0, 0, task), turns)
    if not row.solved:
        advice = LIMITS.get(row.status, "correct the task's answer, the environment or its `gold`")
        raise RequestError(
            f"{where}: the gold answer of the task `{task.id}` is not solved ({_end(row)}): {advice} "
            f"(docs/environments.md)"
        )
    wrong = await prompter.say_wrong(Job(0, 1, 0, task), turns)
    if wrong.failed:
        raise RequestError(
            f"{where}: an answer that says nothing breaks the episode of the task `{task.id}` ({_end(wrong)}): let the "
            f"environment take whatever a model may say"
        )
    if wrong.solved:
        raise RequestError(
            f"{where}: an answer that says nothing solves the task `{task.id}` ({_end(wrong)}): correct the reward, or "
            f"the model learns that anything will do"
        )
    return row


def _end(row: Trajectory) -> str:
    """How an episode ended, in words."""
    parts = "".join(f", {name} {value:g}" for name, value in row.components if name == "success")
    return f"reward {row.reward:g}{parts}, status {row.status}" + (f": {row.detail}" if row.detail else "")
