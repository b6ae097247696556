"""A worker whose store takes nothing any more stops with the cause, and the next one makes what is missing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.rollouts import BASE, config, load, put_window, sealed, stage

from rollout.worker import Worker
from schemas.errors import RunStopped
from storage.memory import MemoryStore


class Limited:
    """A memory store whose disk is full, or forbidden, for keys with a part in them."""

    def __init__(self, store: MemoryStore, refused: str) -> None:
        self._store, self.refused = store, refused

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _check(self, key: str) -> None:
        if self.refused and self.refused in key:
            raise RunStopped(f"{self._store.url}/{key} can't be written: no space left on device")

    def create(self, key: str, data: bytes) -> int:
        self._check(key)
        return self._store.create(key, data)

    def put(self, key: str, data: bytes) -> int:
        self._check(key)
        return self._store.put(key, data)


@pytest.mark.parametrize("refused", ["/trajectories/", "/claims/", "/workers/"])
async def test_a_full_store_stops_the_worker_and_the_next_one_goes_on(tmp_path: Path, refused: str) -> None:
    (tmp_path / "scripts.py").write_text("from support.rollouts import solve")
    plain, spec = stage(config(), str(tmp_path))
    store = Limited(plain, refused)
    put_window(plain, 3)

    def worker(index: int) -> Worker:
        return Worker(store, BASE, spec, load=load, index=index, report=lambda *_, **__: None, stop=bool)

    with pytest.raises(RunStopped, match=f"{refused}.* can't be written: no space left"):
        async with asyncio.timeout(20):
            await worker(0).run()
    assert sealed(plain) == []
    store.refused = ""
    working = asyncio.ensure_future(worker(1).run())
    async with asyncio.timeout(20):
        while len(sealed(plain)) < 6:
            await asyncio.sleep(0.01)
    put_window(plain, 0, version=99, closed=True)
    await working
    assert sorted((r.group, r.sample) for r in sealed(plain)) == [(g, s) for g in range(3) for s in range(2)]
