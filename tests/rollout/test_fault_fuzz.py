"""Any hooks in trouble, any groups cancelled, at any moments, on virtual time.

Every attempt ends in one row or in its cancellation. What has no trouble of its own gives, to the bit, the row that it
gives when it is played alone. The ledger accounts for every row. What was opened is closed once, and nothing is left.
"""

import asyncio
import threading
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import protocol, troubled, virtual_loop
from support.rollouts import TOKENIZER, config
from support.troubled import SLOW, TROUBLES, Plan, Trouble
from support.turning import finish

from models.chat import chat_format
from rollout import hooks
from rollout.collect import TrajectoryCollectEngine
from rollout.episode import Job
from rollout.orchestrator import RolloutOrchestrator
from schemas import keys
from schemas.data import Task
from schemas.trajectory import Trajectory, row_digest
from storage import audit, control
from storage.memory import MemoryStore

GROUPS, SAMPLES, ATTEMPTS = 4, 2, 3
JOBS = [Job(g, s, 0, Task(f"{g}-{s}", f"{g} and {s}?", "1")) for g in range(GROUPS) for s in range(SAMPLES)]
RUN = config(environment={"step_seconds": 1.0, "reward_seconds": 1.0}, rollout={"episode_seconds": 100.0})


@dataclass(frozen=True)
class Cancel:
    """A group that is given up after so many (virtual) seconds and turns of the loop."""

    group: int
    seconds: float
    turns: int


@dataclass
class Played:
    rows: list[Trajectory] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    given_up: int = 0


async def play(trouble: Trouble, jobs: Sequence[Job], cancels: Sequence[Cancel], places: int) -> Played:
    """Play all jobs; what is left behind has time to end."""
    cast, out = troubled.cast(RUN, trouble), Played()
    made = TrajectoryCollectEngine(
        troubled.TroubledEngine(trouble), chat_format(TOKENIZER, cast.tool_specs), cast, RUN,
        run="test", seed=7, worker="w0", temperature=1.0, clock=lambda: 0.0,
    )  # fmt: skip

    def collect(job: Job) -> Coroutine[Any, Any, Trajectory]:
        out.started.append(job.id)
        return made.collect(job)

    orchestrator = RolloutOrchestrator(collect, out.rows.append, max_concurrency=places, attempts=ATTEMPTS)

    async def give_up(cancel: Cancel) -> None:
        await asyncio.sleep(cancel.seconds)
        for _ in range(cancel.turns):
            await asyncio.sleep(0)
        given_up = await orchestrator.cancel(lambda job: job.group == cancel.group)
        out.given_up += given_up  # others may have added theirs meanwhile

    orchestrator.submit(jobs)
    giving_up = [asyncio.ensure_future(give_up(c)) for c in cancels]
    await orchestrator.run([])
    await asyncio.gather(*giving_up)
    assert orchestrator.in_flight == orchestrator.queued == 0
    trouble.released.set()
    await hooks.settle(1000.0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return out


def played(plan: Plan, jobs: Sequence[Job], cancels: Sequence[Cancel] = (), places: int = 8) -> tuple[Played, Trouble]:
    """Jobs under a plan, in threads and on a loop of their own, of which nothing is left."""
    trouble = Trouble(plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hooks, "THREADS", trouble.threads)
        out = virtual_loop.run(play(trouble, jobs, cancels, places), trouble.busy)
    end = time.monotonic() + 60
    while (alive := trouble.threads._threads) and time.monotonic() < end:
        time.sleep(0.001)
    assert not alive and not trouble.threads._open and not hooks._left_behind
    return out, trouble


@cache
def calm(group: int, sample: int, attempt: int) -> str:
    """The digest of an attempt's row when nothing goes wrong and nothing is played beside it."""
    job = next(j for j in JOBS if (j.group, j.sample) == (group, sample))
    (row,) = played({}, [replace(job, attempt=attempt)])[0].rows
    assert row.status == "succeeded"
    return row_digest(row)


def dispositions(rows: list[Trajectory]) -> dict[str, int]:
    """Where a real learner's ledger ends these rows, once the audit has found it in order."""
    store = MemoryStore("test")
    run = protocol.config(steps=GROUPS, groups_per_batch=1, max_staleness=8, rollout={"lease_seconds": 60.0})
    learner, worker = protocol.learner(store, run), protocol.FakeWorker(store, run)
    store.create(keys.spec(protocol.BASE), protocol.spec(run).to_bytes())
    learner.recover()
    for group in range(GROUPS):
        control.create_claim(store, protocol.BASE, group, worker.name, 0)
    for row in rows:
        worker.writer.add(row)
    worker.writer.seal()
    while learner.tick():
        pass
    finish(learner, [worker])
    found = audit.verify(store, "test")
    assert found.ok, found.violations
    return found.to_json()["dispositions"]


def check(plan: Plan, cancels: Sequence[Cancel], places: int) -> None:
    out, trouble = played(plan, JOBS, cancels, places)
    rows, cancelled = out.rows, {c.group for c in cancels}
    assert len({r.id for r in rows}) == len(rows)
    assert len(out.started) == len(set(out.started)) and {r.id for r in rows} <= set(out.started)
    unfinished = sorted(set(out.started) - {r.id for r in rows})
    assert len(unfinished) == out.given_up and all(int(i.split("-")[0]) in cancelled for i in unfinished)
    for job in JOBS:
        own = sorted((r for r in rows if (r.group, r.sample) == (job.group, job.sample)), key=lambda r: r.attempt)
        assert [r.attempt for r in own] == list(range(len(own)))
        assert all(r.failed for r in own[:-1])
        if job.group not in cancelled:
            assert own and (not own[-1].failed or len(own) == ATTEMPTS)
    for row in rows:
        _, kind = plan.get((row.task_id, row.attempt), ("", SLOW))
        if kind == SLOW:
            assert row_digest(row) == calm(row.group, row.sample, row.attempt)
        else:
            assert row.failed and row.detail, row
    assert trouble.opened == trouble.closed
    assert sum(dispositions(rows).values()) == len(rows)


PLANS = st.dictionaries(
    st.tuples(st.sampled_from([j.task.id for j in JOBS]), st.sampled_from([0, 0, 0, 1, 2])),
    st.sampled_from(TROUBLES), max_size=8,
)  # fmt: skip
MOMENTS = st.integers(0, 40).map(lambda n: n / 20) | st.sampled_from([0.0, 1.0, 5.0])
CANCELS = st.lists(st.builds(Cancel, st.integers(0, GROUPS - 1), MOMENTS, st.integers(0, 60)), max_size=3)
EXAMPLES = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True, "database": None}


@settings(max_examples=25, **EXAMPLES)
@given(PLANS, CANCELS, st.sampled_from([1, 3, 8]))
def test_trouble_stays_where_it_is(plan: Plan, cancels: list[Cancel], places: int) -> None:
    check(plan, cancels, places)


@pytest.mark.slow
@settings(max_examples=1000, **EXAMPLES | {"derandomize": False})
@given(PLANS, CANCELS, st.sampled_from([1, 2, 3, 8]))
def test_much_trouble_stays_where_it_is(plan: Plan, cancels: list[Cancel], places: int) -> None:
    check(plan, cancels, places)


def test_threads_of_nobody_are_left() -> None:
    before = threading.active_count()
    check({(j.task.id, 0): ("reset", "blocks") for j in JOBS[:4]}, [], 8)
    assert threading.active_count() <= before
