"""Real workers with the real learner around a fake update: the bound holds, and zero staleness is synchronous."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support import protocol
from support.rollouts import BASE, config, load, sealed, stage

from rollout.worker import Worker
from schemas.config import Run
from schemas.ledger import Kind
from storage.ledger import read_entry
from storage.memory import MemoryStore

SCRIPTS = "from support.rollouts import solve"


async def train(folder: Path, run: Run, workers: int) -> MemoryStore:
    """A whole RL stage in this process."""
    (folder / "scripts.py").write_text(SCRIPTS)
    store, spec = stage(run, str(folder), published=False)
    learner = protocol.learner(store, run)
    made = [Worker(store, BASE, spec, load=load, index=i, report=_quiet, stop=bool) for i in range(workers)]
    working = [asyncio.ensure_future(w.run()) for w in made]
    assert await asyncio.to_thread(learner.run) == "finished"
    await asyncio.gather(*working)
    return store


def _quiet(*_: Any, **__: Any) -> None:
    """Events are of no interest here."""


def trained(store: MemoryStore) -> list[tuple[int, str]]:
    """(version of the step, trajectory id) of every trained row."""
    index, found = 0, []
    while (entry := read_entry(store, BASE, index)) is not None:
        rows = [r for r in entry.record.trained() if r.kind == Kind.TRAJECTORY]
        found += [(entry.record.metadata.version, str(r.trajectory)) for r in rows]
        index += 1
    return found


@pytest.mark.parametrize("staleness", [0, 2])
async def test_staleness_is_bounded_and_every_sample_trained_once(tmp_path: Path, staleness: int) -> None:
    rl = {"steps": 6, "max_staleness": staleness, "window_seconds": 0}
    run = config(rl=rl)
    store = await train(tmp_path, run, workers=2)
    rows = {r.id: r for r in sealed(store)}
    found = trained(store)
    assert len(found) == len({i for _, i in found}) == 6 * 2 * 2
    lags = [version - rows[i].oldest_version for version, i in found]
    assert 0 <= min(lags) <= max(lags) <= staleness
    assert all(r.reward == 1.0 for r in rows.values())
    if staleness == 0:
        assert {rows[i].versions for v, i in found} == {(v,) for v in range(6)}
        assert sorted({rows[i].group for _, i in found}) == list(range(12))
