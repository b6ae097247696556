"""Processes on one virtual clock: each is a greenlet that gives the others their turn whenever it sleeps."""

import heapq
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import greenlet

from schemas.errors import RunStopped

if TYPE_CHECKING:
    from support.simulation import Simulation


class StoreFailed(RunStopped):
    """The store gave up on a call: the process ends with that sentence."""


class Clock:
    """Virtual time, and the actors that wait on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], Any]]] = []
        self._order = itertools.count()

    def at(self, delay: float, act: Callable[[], Any]) -> None:
        heapq.heappush(self._queue, (self.now + delay, next(self._order), act))

    def step(self) -> bool:
        if not self._queue:
            return False
        self.now, _, act = heapq.heappop(self._queue)
        act()
        return True


class Actor:
    """One process: a greenlet that is resumed by the clock until it ends, is killed, or is frozen for a while."""

    def __init__(self, sim: "Simulation", name: str, body: Callable[[], str], ended: Callable[[str], None]) -> None:
        self.sim, self.name, self.alive, self.ended = sim, name, True, ended
        self._body = body
        self._greenlet = greenlet.greenlet(self._run)
        sim.clock.at(sim.random.random(), self.resume)

    def _run(self) -> None:
        try:
            outcome = self._body()
        except StoreFailed:
            outcome = "stopped by the store"
        self.alive = False
        self.ended(outcome)

    def resume(self) -> None:
        if self.alive:
            self.sim.current = self
            self._greenlet.switch()

    def sleep(self, seconds: float) -> None:
        """Called from inside: give the others their turn."""
        self.sim.clock.at(seconds, self.resume)
        self.sim.scheduler.switch()
        if not self.alive:
            raise greenlet.GreenletExit

    def kill(self) -> None:
        """Called from inside: the process ends here and now; nothing of it runs again."""
        self.alive = False
        self.sim.clock.at(0.0, lambda: self.ended("killed"))
        self.sim.graveyard.append(self._greenlet)
        self.sim.scheduler.switch()
