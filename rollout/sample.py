"""A handful of episodes with one policy, to be looked at: nothing is stored, nothing is tried again."""

import asyncio
from collections.abc import Sequence

from rollout import hooks
from rollout.episode import Job
from rollout.policy import Policy
from rollout.setup import Identity, set_up
from schemas.config import Run
from schemas.data import Task
from schemas.trajectory import Trajectory


def jobs(tasks: Sequence[Task], count: int) -> list[Job]:
    """The first `count` tasks; where there are fewer, they are sampled again in turn."""
    return [Job(i % len(tasks), i // len(tasks), 0, tasks[i % len(tasks)]) for i in range(count)]


async def sample(
    config: Run, folder: str, policy: Policy, seed: int, temperature: float, wanted: Sequence[Job]
) -> list[Trajectory]:
    """The episodes of these jobs, in their order, with the configured engine."""
    made = await set_up(config, folder, policy, Identity(config.name, seed, "rollout"), temperature)
    places = asyncio.Semaphore(config.rollout.max_concurrency)

    async def one(job: Job) -> Trajectory:
        async with places:
            return await made.collector.collect(job)

    try:
        return await asyncio.gather(*map(one, wanted))
    finally:
        await hooks.settle(1.0)
        await made.close()
