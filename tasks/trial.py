"""Episodes before, beside or after a run, to be read: of gold answers, a checkpoint, or the weights of `model.path`."""

import asyncio

from models.tokenizer import tokenizer_from_files
from rollout import hooks
from rollout.cast import load_cast
from rollout.episode import Job
from rollout.gold import Prompter
from rollout.policy import Policy
from rollout.sample import jobs, sample
from schemas.data import Task
from schemas.errors import RequestError
from schemas.messages import ToolSpec
from schemas.trajectory import Trajectory
from storage.audit_runs import find_checkpoint
from storage.expired import check_weights
from storage.rows import read_tasks
from tasks.checkpoints import split
from tasks.fit import check_lengths, read_tokenizer
from tasks.initial import initial_files
from tasks.request import Request


def tasks_of(request: Request, setting: str) -> list[Task]:
    """The tasks of `rl.tasks` or another setting; RequestError where the configuration has no such task file."""
    known = [s for s in request.data if not s.startswith("warm_up.")]
    if setting not in known:
        raise RequestError(f"--from {setting}: the configuration has tasks in {', '.join(known)}")
    file = request.data[setting]
    return read_tasks(file.data, file.suffix, file.where)


def tools_of(request: Request) -> tuple[ToolSpec, ...]:
    """What the environment's tools are called with."""
    return tuple(load_cast(request.config.environment, str(request.folder)).tool_specs)


def play_gold(request: Request, setting: str, tasks: list[Task], count: int) -> list[Trajectory]:
    """Episodes in which the gold answers are said. RequestError for a task of which the environment knows none."""
    return asyncio.run(_play_gold(request, f"{setting} ({request.data[setting].where})", jobs(tasks, count)))


async def _play_gold(request: Request, where: str, wanted: list[Job]) -> list[Trajectory]:
    prompter = Prompter(request.config, str(request.folder), read_tokenizer(request))
    try:
        return [await _gold_episode(prompter, where, job) for job in wanted]
    finally:
        await hooks.settle(1.0)
        await prompter.close()


async def _gold_episode(prompter: Prompter, where: str, job: Job) -> Trajectory:
    turns = await prompter.gold(job.task, where)
    if not turns:
        raise RequestError(
            f"{where}: the environment knows no gold answer to the task `{job.task.id}`: let its `gold` return one"
        )
    return await prompter.say(job, turns)


def play_weights(
    request: Request, checkpoint: str | None, tasks: list[Task], count: int, temperature: float | None
) -> list[Trajectory]:
    """Episodes sampled with a checkpoint's weights, or with those of `model.path`, by the configured engine.

    `temperature`: None for the one that RL samples at.
    """
    policy = _checkpoint(request, checkpoint) if checkpoint else _initial(request)
    check_lengths(request.config, policy.config.max_position_embeddings)
    warmth = request.config.rollout.temperature if temperature is None else temperature
    played = sample(request.config, str(request.folder), policy, request.seed, warmth, jobs(tasks, count))
    return asyncio.run(played)


def _checkpoint(request: Request, text: str) -> Policy:
    from models.stored import load_weights

    run, step = split(text)
    weights = find_checkpoint(request.store, run, step)[1].policy
    check_weights(request.store, weights)
    return Policy(0, *load_weights(request.store, weights))


def _initial(request: Request) -> Policy:
    from models.weights import from_files

    files = initial_files(request)
    if files is None:
        raise RequestError(
            "there are no weights to sample with, since the model is made from scratch: give --checkpoint RUN@STEP of "
            "a run, --policy gold, or --set model.path=FOLDER"
        )
    names, read = files
    where = str(request.config.model.path)
    return Policy(0, *from_files(read, names, where), tokenizer_from_files(read, names, where))
