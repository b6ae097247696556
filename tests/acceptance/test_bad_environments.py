"""Environments that fail, hang or flood cost their own episode, with a status; the run ends and its ledger adds up."""

import asyncio
from pathlib import Path
from typing import Any

from support import protocol
from support.rollouts import BASE, config, load, sealed, stage

from rollout.worker import Worker
from schemas import keys
from schemas.trajectory import Status
from storage import audit

STEPS, GROUPS, SIZE = 6, 2, 2
SCRIPTS = "from support.rollouts import solve"
WORLD = """
import asyncio, os, pathlib, time
from rollout.environments import StepResult, ToolEnvironment
from schemas.messages import Message

def raises():
    raise KeyError("lost")

def hangs():
    time.sleep(20)

async def waits():
    await asyncio.sleep(3600)

def floods():
    return StepResult([Message("tool", "x" * 1_000_000)])

BAD = {"t0": raises, "t1": hangs, "t2": waits, "t3": floods}

def is_first(episode):
    try:
        os.mkdir(pathlib.Path(__file__).parent / episode)
    except FileExistsError:
        return False
    return True

class World(ToolEnvironment):
    def step(self, action):
        if self.task.id in BAD and is_first(self.task.id):
            return BAD[self.task.id]()
        return super().step(action)
"""
STATUSES = {
    "t0": Status.ENVIRONMENT_ERROR,
    "t1": Status.ENVIRONMENT_TIMEOUT,
    "t2": Status.ENVIRONMENT_TIMEOUT,
    "t3": Status.FLOODED,
}


def quiet(*_: Any, **__: Any) -> None:
    """Events are of no interest here."""


def test_each_bad_environment_costs_one_episode(tmp_path: Path) -> None:
    (tmp_path / "scripts.py").write_text(SCRIPTS)
    (tmp_path / "world.py").write_text(WORLD)
    run = config(
        environment={"environment": "world:World", "step_seconds": 2.0},
        rollout={"lease_seconds": 5.0},
        rl={"steps": STEPS, "groups_per_batch": GROUPS, "group_size": SIZE, "window_seconds": 0},
    )
    store, spec = stage(run, str(tmp_path), published=False)
    store.create(keys.spec(BASE), spec.to_bytes())
    learner = protocol.learner(store, run)

    async def train() -> None:
        made = [Worker(store, BASE, spec, load=load, index=i, report=quiet, stop=bool) for i in range(2)]
        working = [asyncio.ensure_future(w.run()) for w in made]
        assert await asyncio.to_thread(learner.run) == "finished"
        await asyncio.gather(*working)

    asyncio.run(train())
    rows = sealed(store)
    failed = {row.task_id: row for row in rows if row.failed}
    assert {task: row.status for task, row in failed.items()} == STATUSES
    assert sum(row.failed for row in rows) == len(failed) and all(row.detail for row in failed.values())
    assert all(row.reward == 1.0 for row in rows if not row.failed)

    found = audit.verify(store, "test")
    assert found.ok, found.violations
    ends = found.to_json()["dispositions"]
    assert sum(ends.values()) == found.total("generated") == len(rows) and not found.total("unaccounted")
    ends.pop("unused", None)
    assert ends == {"trained": STEPS * GROUPS * SIZE, "failed": len(failed)}
