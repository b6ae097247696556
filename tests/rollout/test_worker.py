"""Workers in this process, on a memory store with a hand-made window and policy and a scripted engine."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollout.worker import Worker
from schemas import keys
from schemas.config import Run
from schemas.manifest import RLSpec
from storage.memory import MemoryStore
from support.rollouts import BASE, config, load, publish, put_window, sealed, stage, task_of, workers

SCRIPTS = """
from support.rollouts import solve, give_up
"""


class Site:
    """A stage and the workers on it; the test plays the learner."""

    def __init__(self, folder: Path, run: Run | None = None) -> None:
        (folder / "scripts.py").write_text(SCRIPTS)
        self.run = run or config()
        self.store, self.spec = stage(self.run, str(folder))
        self.events: list[dict[str, Any]] = []
        self.stopping = False

    def worker(self, index: int = 0) -> Worker:
        return Worker(
            self.store,
            BASE,
            self.spec,
            load=load,
            index=index,
            report=lambda event, **fields: self.events.append({"event": event, **fields}),
            stop=lambda: self.stopping,
        )

    def close(self) -> None:
        """Close the window where it stands."""
        put_window(self.store, 0, version=99, low=0, closed=True)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something that must come."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def test_worker_plays_the_window_and_leaves(site: Site) -> None:
    put_window(site.store, 3)
    working = asyncio.ensure_future(site.worker().run())
    await until(lambda: len(sealed(site.store)) == 6)
    site.close()
    await working
    rows = sealed(site.store)
    assert sorted((r.group, r.sample, r.attempt) for r in rows) == [(g, s, 0) for g in range(3) for s in range(2)]
    assert all(r.status == "succeeded" and r.reward == 1.0 and r.versions == (0,) for r in rows)
    assert {r.task_id for r in rows if r.group == 1} == {task_of(1).id}
    (state,) = workers(site.store)
    assert (state.state, state.counters["trajectories"], state.next_seq) == (
        "left",
        6,
        len(site.store.list(f"{BASE}/traj")),
    )
