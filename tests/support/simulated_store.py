"""A store in memory whose calls take virtual time, fail now and then, lose answers, and damage shards."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from schemas.errors import HeadraceError
from storage.memory import MemoryStore
from storage.objects import GenerationMismatch, ObjectExists, Stored
from storage.shards import END_MARKER, decode_shard
from support.protocol import BASE
from support.virtual import Actor, StoreFailed

if TYPE_CHECKING:
    from support.simulation import Simulation

FAILS, LOSES, DAMAGES = 0.0005, 0.01, 0.04
"""How probable it is that a store call fails for good, that a conditional write loses its answer, that a shard rots."""

remembered = functools.lru_cache(maxsize=4096)(decode_shard)
"""A shard is read by the learner, by heirs and by the audit; decoding it once makes the simulation twice as fast."""


class SimulatedStore(MemoryStore):
    """A store whose every call takes time and may be an actor's last."""

    def __init__(self, sim: "Simulation") -> None:
        super().__init__("simulation")
        self.sim = sim

    def _around(self, kind: str, key: str, call: Callable[[], Any]) -> Any:
        sim, actor = self.sim, self.sim.current
        if actor is None:
            return call()
        sim.disturb(actor, kind, key)
        actor.sleep(sim.random.expovariate(20.0))
        self._fail(actor)
        try:
            return call()
        finally:
            if actor.alive:
                sim.disturb(actor, "", key)

    def _fail(self, actor: Actor) -> None:
        """Maybe give up, as a store does whose retries have run into their deadline."""
        if self.sim.luck() < FAILS:
            self.sim.counts["store failed"] += 1
            raise StoreFailed(f"the store failed for {actor.name}")

    def put(self, key: str, data: bytes) -> int:
        def write() -> int:
            generation = super(SimulatedStore, self).put(key, data)
            self.sim.checks.written(key)
            return generation

        return self._around("put", key, write)

    def create(self, key: str, data: bytes) -> int:
        def write() -> int:
            generation = super(SimulatedStore, self).create(key, data)
            return self._answered(key, data, generation, ObjectExists)

        return self._around("create", key, write)

    def swap(self, key: str, data: bytes, generation: int) -> int:
        def write() -> int:
            written = super(SimulatedStore, self).swap(key, data, generation)
            return self._answered(key, data, written, GenerationMismatch)

        return self._around("swap", key, write)

    def get(self, key: str) -> Any:
        return self._around("get", key, lambda: super(SimulatedStore, self).get(key))

    def head(self, key: str) -> Any:
        return self._around("head", key, lambda: super(SimulatedStore, self).head(key))

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> Any:
        return self._around("list", prefix, lambda: super(SimulatedStore, self).list(prefix, after, limit))

    def _answered(self, key: str, data: bytes, generation: int, lost: type[HeadraceError]) -> int:
        """The write took effect; its answer may get lost. The store's client then repeats the call and reads back."""
        sim = self.sim
        rots = key.startswith(f"{BASE}/trajectories/") and data != END_MARKER and sim.luck() < DAMAGES
        if rots:
            self._damage(key)
        sim.checks.written(key)
        if rots or sim.luck() >= LOSES:
            return generation
        sim.counts["answer lost"] += 1
        self._fail_late()
        sim.current.sleep(sim.random.expovariate(0.2))
        if self._objects[key].data != data:
            raise lost(f"{key} was overwritten before its writer heard of it")
        return self._objects[key].generation

    def _fail_late(self) -> None:
        """One lost answer in four is never repeated."""
        if self.sim.random.random() < 0.25:
            raise StoreFailed("the answer to a write got lost")

    def _damage(self, key: str) -> None:
        """Cut an object short where it lies."""
        self.sim.counts["shard damaged"] += 1
        stored = self._objects[key]
        self.sim.checks.rots(stored.data)
        self._objects[key] = Stored(stored.data[: len(stored.data) // 2], stored.generation)
