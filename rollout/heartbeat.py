"""A worker's sign of life: one object that changes at every beat, whatever else the worker is doing.

The loop beats on its own timer, so that loading weights or compiling does not look like death.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollout.counters import rates
from schemas.manifest import WorkerState
from storage import control
from storage.objects import ObjectStore


@dataclass(frozen=True)
class Pulse:
    """What a beat says of the worker."""

    version: int
    next_seq: int
    in_flight: int
    counters: dict[str, float]


class Heartbeat:
    """Writes the worker's state every `seconds` and reports it as a `worker` event."""

    def __init__(
        self,
        store: ObjectStore,
        base: str,
        state: WorkerState,
        pulse: Callable[[], Pulse],
        report: Callable[..., Any],
    ) -> None:
        self._store, self._base, self._pulse, self._report = store, base, pulse, report
        self._state = state
        self._writing: asyncio.Future[None] | None = None

    async def run(self, seconds: float) -> None:
        """Beat until cancelled."""
        while True:
            await self.beat()
            await asyncio.sleep(seconds)

    async def leave(self) -> None:
        """The last beat: this worker's claims are free for others."""
        await self.beat(left=True)

    async def beat(self, *, left: bool = False) -> None:
        pulse, before = self._pulse(), self._state.counters
        change = {
            "state": "left" if left else "running",
            "beat": self._state.beat + 1,
            "version": pulse.version,
            "next_seq": pulse.next_seq,
            "counters": pulse.counters,
        }
        self._state = self._state.model_copy(update=change)
        await self._write()
        self._report(
            "worker",
            worker=self._state.worker,
            version=pulse.version,
            in_flight=pulse.in_flight,
            trajectories=pulse.counters["trajectories"],
            **rates(before, pulse.counters),
        )

    async def _write(self) -> None:
        """One write at a time: a beat that was cancelled on its way may still arrive, and must not follow the last."""
        if self._writing is not None:
            await asyncio.wait({self._writing})
        writing = asyncio.to_thread(control.beat, self._store, self._base, self._state)
        self._writing = asyncio.ensure_future(writing)
        await asyncio.shield(self._writing)
