"""An engine whose progress can be seen: what it is asked for must be answered, or its counters must move.

A worker gives a sign of life at every turn of its loop, unless the engine owes answers and gets nowhere: an engine that
is stuck in a thread of its own leaves the loop as lively as ever.
"""

import time
from collections.abc import Callable
from typing import Any

from rollout.engine import Completion, Engine, Request
from storage.pulse import busy

_MOVING = ("prefilled_tokens", "generated_tokens", "dispatches")


class WatchedEngine:
    """Implements `rollout.engine.Engine` by another one.

    `patience`: seconds for which unanswered requests are no sign of trouble, for an engine whose counters only move
    with its answers. `work_seconds`: how long taking over weights may take, and the first work of all.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        patience: float,
        work_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._work_seconds, self._clock = engine, work_seconds, clock
        self._patience, self._later = work_seconds, patience
        self._open = self._answered = 0
        self._seen, self._moved = self._figures(), clock()

    @property
    def version(self) -> int:
        return self._engine.version

    async def generate(self, request: Request) -> Completion:
        if not self._open:
            self._moved = self._clock()
        self._open += 1
        try:
            return await self._engine.generate(request)
        finally:
            self._open -= 1
            self._answered += 1

    def release(self, session: str) -> None:
        self._engine.release(session)

    async def update_weights(self, params: Any, version: int) -> None:
        with busy("taking over weights", self._work_seconds):
            await self._engine.update_weights(params, version)

    async def score(self, token_ids: tuple[int, ...]) -> dict[str, tuple[float, ...]]:
        with busy("scoring the probe", self._work_seconds):
            return await self._engine.score(token_ids)

    def counters(self) -> dict[str, float]:
        return self._engine.counters()

    async def close(self) -> None:
        await self._engine.close()

    def gets_on(self) -> bool:
        """Whether it owes nothing, or has done something since the last look, or may still take its time."""
        figures, now = self._figures(), self._clock()
        if figures != self._seen:
            self._seen, self._moved, self._patience = figures, now, self._later
            return True
        return not self._open or now - self._moved < self._patience

    def _figures(self) -> tuple[float, ...]:
        counted = self._engine.counters()
        return (float(self._answered), *(counted.get(name, 0.0) for name in _MOVING))
