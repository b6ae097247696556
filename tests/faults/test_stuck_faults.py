"""Faults that others' users reported of runs that hang, starve what is slow, or learn nothing.

Each test names a public report. `docs/faults.md` is the whole table.
"""

import asyncio
import random
import time

import numpy as np
import pytest
from support.protocol import BASE, FakeWorker, config, learner, trajectory
from support.rollouts import load, publish
from support.turning import drive, finish, records

from rollout.episode import Job
from rollout.orchestrator import RolloutOrchestrator
from rollout.policy import PolicyFollower
from rollout.probe import Prover
from rollout.scripted import ScriptedEngine
from schemas.data import Task
from schemas.ledger import Disposition, Kind
from schemas.trajectory import Status
from storage import control
from storage.memory import MemoryStore
from trainer.advantages import grpo

FLIPS = 10_000
ENDS = [Status.SUCCEEDED, Status.SUCCEEDED, Status.FLOODED, Status.ENVIRONMENT_ERROR]


def begin(store, run, name="L1", **options):
    made = learner(store, run, name, **options)
    made.recover()
    return made


def ends(store):
    """Group → (its disposition, the reason)."""
    rows = [r for record in records(store) for r in record.rows if r.kind == Kind.GROUP]
    return {r.group: (r.disposition, r.reason) for r in rows}


def test_a_sample_that_never_returns_costs_its_group_a_deadline():
    """A buffer stood at 125 of 128 for 29 hours since one worker never returned (NovaSky-AI/SkyRL#1173)."""
    store, run, late = MemoryStore(), config(steps=2, max_staleness=0, group_seconds=60.0), [0.0]
    made = begin(store, run, wall=lambda: time.time() + late[0])
    worker = FakeWorker(store, run)
    for group in range(2):
        control.create_claim(store, BASE, group, worker.name, 0)
    worker.write(1, 0)
    worker.writer.add(trajectory(0, 0, worker=worker.name))
    worker.writer.seal()
    assert not made.tick()
    late[0], made.watch._next = 61.0, 0.0
    assert made.tick()
    assert ends(store)[1] == (Disposition.TRAINED, None)
    assert ends(store)[0][0] == Disposition.INCOMPLETE and "not whole 60 s after its first claim" in ends(store)[0][1]
    drive(made, [worker], 2)


def test_a_poisoned_task_ends_once_and_is_not_drawn_again_after_a_resume():
    """One stuck sibling wedged a step; the resume drew the same batch and wedged again (NVIDIA-NeMo/RL#3238)."""
    store, run = MemoryStore(), config(steps=4, groups_per_batch=1, checkpoint_every=100)
    made, worker = begin(store, run), FakeWorker(store, run)
    control.create_claim(store, BASE, 0, worker.name, 0)
    for attempt in range(3):
        worker.write(0, 0, attempt=attempt, status=Status.ENVIRONMENT_TIMEOUT, detail="step took longer")
    drive(made, [worker], 2)
    again = begin(store, run, "L2")
    assert again.progress.is_ended(0) and 0 not in again.progress.open_groups()
    drive(again, [worker], 4)
    finish(again, [worker])
    assert ends(store)[0][0] == Disposition.INCOMPLETE and "step took longer" in ends(store)[0][1]
    assert sum(len(record.trained()) for record in records(store)) >= 3 * 2


async def test_no_wake_up_is_lost_between_ten_thousand_of_them():
    """A wake-up between a gate's set and its wait was lost, and the sampler slept for ever (NVIDIA-NeMo/RL#3410)."""
    draw, delivered = random.Random(0), []

    async def others():
        for _ in range(draw.randrange(4)):
            await asyncio.sleep(0)

    async def collect(job):
        await others()
        return trajectory(job.group, job.sample)

    orchestrator = RolloutOrchestrator(collect, delivered.append, max_concurrency=1, attempts=3)
    orchestrator.submit(Job(n, 0, 0, Task("t", "?", "!")) for n in range(FLIPS))
    async with asyncio.timeout(60):
        while len(delivered) < FLIPS:
            orchestrator.fill()
            await others()
            await orchestrator.wait(3600.0)
    assert sorted(row.group for row in delivered) == list(range(FLIPS))


async def test_no_wake_up_is_lost_between_ten_thousand_policies():
    """Nothing ends here but the loading of the next policy: whoever misses that sleeps for ever."""
    store, engine = MemoryStore(), ScriptedEngine(lambda stream, seed, version: [5], version=0)
    orchestrator = RolloutOrchestrator(None, print, max_concurrency=1, attempts=1)
    prover = Prover(engine, 1e-3)
    follower = PolicyFollower(store, BASE, engine, load, prover, drain=True, news=orchestrator.wake)
    async with asyncio.timeout(60):
        for version in range(1, FLIPS + 1):
            publish(store, version)
            while not await follower.follow(version, in_flight=0):
                await orchestrator.wait(3600.0)
    assert engine.version == FLIPS


@pytest.mark.parametrize("seed", range(10))
async def test_groups_that_are_given_up_at_any_moment_strand_nothing(seed):
    """Cancelling stranded groups that were partly played (huggingface/trl#5320).

    Every episode that began ends as a row or is counted as given up, and the samples of all other groups end with a
    success or their last attempt.
    """
    draw, rows, begun = random.Random(seed), [], []

    async def collect(job):
        begun.append(job.id)
        for _ in range(draw.randrange(6)):
            await asyncio.sleep(0)
        return trajectory(job.group, job.sample, attempt=job.attempt, status=draw.choice(ENDS), detail=job.id)

    orchestrator = RolloutOrchestrator(collect, rows.append, max_concurrency=8, attempts=3)
    orchestrator.submit(Job(group, sample, 0, Task("t", "?", "!")) for group in range(100) for sample in range(2))
    unwanted, given_up = set(), 0
    async with asyncio.timeout(60):
        while orchestrator.queued or orchestrator.in_flight:
            orchestrator.fill()
            await orchestrator.wait(3600.0)
            await asyncio.sleep(0)
            if draw.random() < 0.3:
                unwanted.add(draw.choice(sorted(orchestrator.groups)[:4] or [0]))
                given_up += await orchestrator.cancel(lambda job: job.group in unwanted)
    assert len(begun) == len(set(begun)) == len(rows) + given_up and given_up
    ends = {(r.group, r.sample) for r in rows if not r.failed or r.attempt == 2}
    assert ends >= {(group, sample) for group in range(100) if group not in unwanted for sample in range(2)}
    assert len([r for r in rows if not r.failed]) == len({(r.group, r.sample) for r in rows if not r.failed})


def test_slow_tasks_are_trained_as_often_as_they_are_sampled():
    """Discarding and asking again starved slow tasks (thinking-machines-lab/tinker-cookbook#822)."""
    store, run = MemoryStore(), config(steps=30, max_staleness=2)
    made, worker = begin(store, run), FakeWorker(store, run)
    slow: dict[int, tuple[int, int]] = {}
    for turn in range(1000):
        window = control.read_window(store, BASE)[0]
        for group in range(window.low, window.limit):
            if control.create_claim(store, BASE, group, worker.name, window.version):
                slow[group] = (turn + (9 if group % 3 == 0 else 0), window.version)
        for group in [g for g, (due, _) in slow.items() if due <= turn]:
            worker.write(group, slow.pop(group)[1], detail="slow" if group % 3 == 0 else "")
        made.tick()
        if made.progress.step == 30:
            break
    finish(made, [worker])
    assert {disposition for disposition, _ in ends(store).values()} == {Disposition.TRAINED}
    assert sorted(ends(store)) == list(range(60))


def test_groups_go_by_number_and_not_by_the_prompt():
    """Groups told apart by their prompts fell into singles without an advantage (NVIDIA-NeMo/RL#4013)."""
    store, run = MemoryStore(), config(steps=1, groups_per_batch=1, group_size=3)
    made, worker = begin(store, run), FakeWorker(store, run)
    control.create_claim(store, BASE, 0, worker.name, 0)
    for sample in range(3):
        worker.writer.add(
            trajectory(0, sample, worker=worker.name, tokens=(100 + sample, 2, 3, 4), reward=float(sample == 2))
        )
    worker.writer.seal()
    assert made.tick()
    advantages = [row.advantage for row in records(store)[0].trained()]
    assert len(advantages) == 3 and advantages[2] > 1.0 > 0.0 > advantages[0] == advantages[1]


def test_groups_of_unequal_size_are_each_measured_by_themselves():
    """Groups that had lost a sample were cut in strides of the full size (inclusionAI/AReaL#1419)."""
    store, run = MemoryStore(), config(steps=1, groups_per_batch=2, group_size=3)
    made, worker = begin(store, run), FakeWorker(store, run)
    rewards = {0: (0.0, 1.0), 1: (1.0, 0.0, 0.25)}
    for group, values in rewards.items():
        control.create_claim(store, BASE, group, worker.name, 0)
        for sample, reward in enumerate(values):
            worker.writer.add(trajectory(group, sample, worker=worker.name, reward=reward))
    for attempt in range(3):
        worker.writer.add(trajectory(0, 2, attempt=attempt, worker=worker.name, status=Status.FLOODED))
    worker.writer.seal()
    assert made.tick()
    found = {group: [r.advantage for r in records(store)[0].trained() if r.group == group] for group in rewards}
    assert found == {group: pytest.approx(grpo(np.array(values)), abs=1e-6) for group, values in rewards.items()}
