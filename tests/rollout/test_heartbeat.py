"""The last beat is the last write: a worker that leaves is not shown as running by a beat that was on its way."""

import asyncio
import threading

from rollout.counters import Counters
from rollout.heartbeat import Heartbeat, Pulse
from schemas import keys
from storage.control import read_worker, register_worker
from storage.memory import MemoryStore

BASE = "runs/test/rl-0"


class Slow(MemoryStore):
    """A store whose first heartbeat arrives late."""

    def __init__(self) -> None:
        super().__init__("slow")
        self.waiting, self.go = threading.Event(), threading.Event()

    def put(self, key: str, data: bytes) -> int:
        if key == keys.worker(BASE, 0) and not self.waiting.is_set():
            self.waiting.set()
            assert self.go.wait(30)
        return super().put(key, data)


async def test_a_beat_that_is_on_its_way_does_not_follow_the_last_one() -> None:
    store = Slow()
    state = register_worker(store, BASE, worker="w0-a", host="here", pid=1)
    pulse = Pulse(version=0, next_seq=0, in_flight=0, counters=Counters(lambda: 0.0).values())
    heart = Heartbeat(store, BASE, state, lambda: pulse, lambda *_, **__: None)
    beating = asyncio.ensure_future(heart.run(0.01))
    assert await asyncio.to_thread(store.waiting.wait, 30)
    beating.cancel()
    await asyncio.wait({beating})
    leaving = asyncio.ensure_future(heart.leave())
    await asyncio.wait({leaving}, timeout=0.2)
    store.go.set()
    await leaving
    await asyncio.get_running_loop().shutdown_default_executor()
    found = read_worker(store, BASE, 0)
    assert found is not None and found[0].state == "left"
