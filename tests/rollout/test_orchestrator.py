"""Many episodes at once: the bound, retries, cancellation, and stopping when everything fails."""

import asyncio
from collections.abc import Callable

import pytest
from support.protocol import trajectory
from support.rollouts import TASKS

from rollout.episode import Job
from rollout.orchestrator import RolloutOrchestrator
from schemas.errors import RunStopped
from schemas.trajectory import Trajectory


class Stage:
    """Plays jobs by `outcome`, counting how many run at once."""

    def __init__(self, outcome: Callable[[Job], str] = lambda _: "succeeded", *, places: int = 3) -> None:
        self.rows: list[Trajectory] = []
        self.running = self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.orchestrator = RolloutOrchestrator(self._play, self.rows.append, max_concurrency=places, attempts=3)
        self._outcome = outcome

    async def _play(self, job: Job) -> Trajectory:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0.001 * (job.group % 3))
            await self.gate.wait()
        finally:
            self.running -= 1
        status = self._outcome(job)
        return trajectory(
            job.group, job.sample, attempt=job.attempt, status=status, detail="" if status == "succeeded" else "x"
        )


def jobs(groups: int, samples: int = 2, attempt: int = 0) -> list[Job]:
    return [Job(g, s, attempt, TASKS[0]) for g in range(groups) for s in range(samples)]


async def test_every_job_is_played_once_and_never_too_many_at_once() -> None:
    stage = Stage()
    await stage.orchestrator.run(jobs(20))
    assert sorted((r.group, r.sample) for r in stage.rows) == [(g, s) for g in range(20) for s in range(2)]
    assert stage.most == 3


async def test_a_failed_sample_is_tried_again_and_every_attempt_is_a_row() -> None:
    stage = Stage(lambda job: "flooded" if job.sample == 0 and job.attempt < 2 else "succeeded")
    await stage.orchestrator.run(jobs(3))
    assert sorted((r.sample, r.attempt) for r in stage.rows if r.group == 1) == [(0, 0), (0, 1), (0, 2), (1, 0)]


async def test_attempts_end_with_the_owners_last_number() -> None:
    stage = Stage(lambda job: "flooded" if job.group == 0 else "succeeded")
    await stage.orchestrator.run(jobs(2, samples=1, attempt=6))
    assert sorted(r.attempt for r in stage.rows if r.group == 0) == [6, 7, 8]


async def test_cancelling_gives_up_what_is_unwanted_only() -> None:
    stage = Stage(places=4)
    stage.gate.clear()
    stage.orchestrator.submit(jobs(4))
    stage.orchestrator.fill()
    await asyncio.sleep(0.02)
    given_up = await stage.orchestrator.cancel(lambda job: job.group in (0, 3))
    assert (given_up, stage.orchestrator.in_flight, stage.orchestrator.queued) == (2, 2, 2)
    stage.gate.set()
    await stage.orchestrator.run([])
    assert sorted({r.group for r in stage.rows}) == [1, 2]


async def test_an_exception_that_is_no_episodes_own_surfaces() -> None:
    async def broken(job: Job) -> Trajectory:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        await RolloutOrchestrator(broken, print, max_concurrency=2, attempts=3).run(jobs(2))


async def test_a_bug_in_one_episode_loses_no_other() -> None:
    stage = Stage(places=4)
    stage.gate.clear()

    def outcome(job: Job) -> str:
        if job.group == 1:
            raise ZeroDivisionError("a bug")
        return "succeeded"

    stage._outcome = outcome
    stage.orchestrator.submit(jobs(4, samples=1))
    stage.orchestrator.fill()
    await asyncio.sleep(0.02)
    stage.gate.set()
    await asyncio.sleep(0.02)
    with pytest.raises(ZeroDivisionError):
        await stage.orchestrator.wait(1)
    assert sorted(r.group for r in stage.rows) == [0, 2, 3]


async def test_when_everything_fails_the_first_cause_is_said_soon() -> None:
    stage = Stage(lambda _: "environment_error")
    with pytest.raises(
        RunStopped, match=r"the last 16 episodes all failed, the first with environment_error: x \(task"
    ):
        await stage.orchestrator.run(jobs(50))
    assert len(stage.rows) == 16
    await stage.orchestrator.cancel(lambda _: True)


async def test_one_bad_task_stops_nothing() -> None:
    stage = Stage(lambda job: "environment_error" if job.group == 0 else "succeeded")
    await stage.orchestrator.run(jobs(2, samples=30))
    assert len(stage.rows) == 90 + 30


async def test_different_causes_stop_it_later() -> None:
    stage = Stage(lambda job: ("environment_error", "flooded")[job.group % 2])
    with pytest.raises(RunStopped, match="episodes all failed"):
        await stage.orchestrator.run(jobs(50))
    assert 64 <= len(stage.rows) < 64 + 3
    await stage.orchestrator.cancel(lambda _: True)
