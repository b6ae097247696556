"""A task that does harm is not played any more, by nobody and after no resume; the ledger says why and adds up."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import protocol
from support.rollouts import BASE, TASKS, config, load, sealed, stage, task_of, workers

from rollout.quarantine import Quarantine
from rollout.worker import Worker
from schemas import keys
from schemas.config import Run
from schemas.ledger import Kind
from schemas.trajectory import Status, Trajectory
from storage import audit
from storage.control import read_window
from storage.ledger import read_entry
from storage.memory import MemoryStore
from storage.quarantine import read_trouble, troubles

POISON = task_of(0).id
WORLD = """
from rollout.environments import ToolEnvironment

class World(ToolEnvironment):
    def step(self, action):
        if self.task.id == "POISON":
            raise OSError("boom")
        return super().step(action)
"""


def quiet(*_: Any, **__: Any) -> None:
    """Events are of no interest here."""


def settings(steps: int) -> Run:
    rl = {"steps": steps, "groups_per_batch": 2, "group_size": 2, "window_seconds": 0}
    return config(environment={"environment": "world:World"}, rl=rl)


async def train(store: MemoryStore, spec: Any, run: Run) -> None:
    learner = protocol.learner(store, run)
    learning = asyncio.ensure_future(asyncio.to_thread(learner.run))
    while not learning.done() and ((found := read_window(store, BASE)) is None or found[0].closed):
        await asyncio.sleep(0.01)
    made = [Worker(store, BASE, spec, load=load, index=i, report=quiet, stop=bool) for i in range(2)]
    working = [asyncio.ensure_future(w.run()) for w in made]
    assert await learning == "finished"
    await asyncio.gather(*working)


async def test_a_poisonous_task_is_given_up_by_all_workers_and_after_a_resume(tmp_path: Path) -> None:
    (tmp_path / "scripts.py").write_text("from support.rollouts import solve")
    (tmp_path / "world.py").write_text(WORLD.replace("POISON", POISON))
    run = settings(8)
    store, spec = stage(run, str(tmp_path), published=False)
    store.create(keys.spec(BASE), spec.to_bytes())
    await train(store, spec, run)
    [trouble] = troubles(store, BASE)
    assert trouble.task_id == POISON and len(trouble.groups) >= 2 and "boom" in trouble.reason(2)
    played = {r.id for r in sealed(store) if r.task_id == POISON and r.status != Status.QUARANTINED}
    longer = settings(12)
    await train(store, spec.model_copy(update={"config": longer.model_dump(mode="json")}), longer)

    rows = [r for r in sealed(store) if r.task_id == POISON]
    assert {r.id for r in rows if r.status != Status.QUARANTINED} == played  # nothing after the resume
    refused = [r for r in rows if r.status == Status.QUARANTINED]
    assert refused and all("in quarantine" in r.detail and not r.tokens for r in refused)
    assert sum(w.counters["quarantined"] for w in workers(store)) == len(refused)
    records = [entry.record for i in range(99) if (entry := read_entry(store, BASE, i)) is not None]
    trained = {str(r.trajectory) for record in records for r in record.trained()}
    assert not trained & {r.id for r in rows} and len(trained) >= 12
    reasons = [r.reason for record in records for r in record.rows if r.kind == Kind.GROUP and r.reason]
    assert any("in quarantine" in reason for reason in reasons)
    found = audit.verify(store, "test")
    assert found.ok, found.violations
    assert Counter(r.failed for r in sealed(store))[True] == found.to_json()["dispositions"]["failed"]


def play(quarantine: Quarantine, group: int, task: int, statuses: dict[int, str]) -> None:
    """A group of two whose samples fail all three attempts, or not."""
    quarantine.plays(group, task, range(2))
    for sample, status in statuses.items():
        for attempt in range(3 if status not in Status.SUCCEEDED else 1):
            quarantine.note(row(group, sample, attempt, status))
    if quarantine.due:
        quarantine.write()


def row(group: int, sample: int, attempt: int, status: str) -> Trajectory:
    return protocol.trajectory(group, sample, attempt=attempt, status=status, detail="x")


@pytest.mark.parametrize(
    ("groups", "refused"),
    [
        ([{0: "flooded", 1: "timeout"}], False),
        ([{0: "flooded", 1: "timeout"}] * 2, True),
        ([{0: "flooded", 1: "succeeded"}] * 5, False),
        ([{0: "flooded", 1: "flooded"}, {0: "succeeded", 1: "flooded"}, {0: "flooded", 1: "flooded"}], False),
        ([{0: "flooded", 1: "engine_error"}] * 5, False),
    ],
)
def test_only_tasks_on_which_everything_fails_are_given_up(groups: list[dict[int, str]], refused: bool) -> None:
    store = MemoryStore()
    for number, statuses in enumerate(groups):  # each group is another worker's
        quarantine = Quarantine(store, BASE, config(), TASKS)
        assert not quarantine.reason(3)
        play(quarantine, number, 3, statuses)
    assert bool(Quarantine(store, BASE, config(), TASKS).reason(3)) is refused
    assert not Quarantine(store, BASE, config(rollout={"quarantine_after": 0}), TASKS).reason(3)
    assert not Quarantine(store, BASE, config(rollout={"quarantine_after": 3}), TASKS).reason(3)


def test_what_two_workers_find_at_once_counts_twice_but_one_group_only_once() -> None:
    store = MemoryStore()
    workers = [Quarantine(store, BASE, config(), TASKS) for _ in range(3)]
    for quarantine, group in zip(workers, (4, 9, 4), strict=True):
        play(quarantine, group, 1, {0: "flooded", 1: "flooded"})
    trouble = read_trouble(store, BASE, 1)
    assert trouble is not None and trouble.groups == (4, 9)
