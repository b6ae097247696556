"""Signs of progress that a process gives its supervisor: a beat where work went on, and announcements of long work.

A beat comes from the place that works and never from a thread of its own, so that it proves something. Work that has
nothing to say for long is announced with the longest that it may take. Where nobody supervises, nothing is said.
"""

import itertools
import time
from collections.abc import Generator
from contextlib import contextmanager

from storage import process

SECONDS = 1.0
"""Least time between two beats that are said."""
_LEAST = 60.0
_numbers = itertools.count(1)
_last = [float("-inf")]


def beat() -> None:
    """Work went on. Cheap enough for every turn of a loop."""
    now = time.monotonic()
    if now - _last[0] >= SECONDS:
        _last[0] = now
        process.tell("beat")


def turn() -> bool:
    """A turn of a process's main loop: a beat, and whether somebody asked for a stop."""
    beat()
    return process.stop_requested()


@contextmanager
def busy(what: str, seconds: float) -> Generator[None]:
    """Announce work in which no beat comes, at most `seconds` of it. Several may overlap."""
    work = Work(what, seconds)
    try:
        yield
    finally:
        work.done()


class Work:
    """Announced work whose end is not that of a block: call `done`, once or more often."""

    def __init__(self, what: str, seconds: float) -> None:
        self._id = next(_numbers)
        process.tell("busy", id=self._id, what=what, seconds=seconds)

    def done(self) -> None:
        if self._id:
            process.tell("done", id=self._id)
            self._id = 0


class Repeated:
    """Work that comes again and again: at most `seconds` at first, then ten times the longest since the first."""

    def __init__(self, what: str, seconds: float) -> None:
        self._what, self._seconds = what, seconds
        self._longest: float | None = None

    @contextmanager
    def once(self) -> Generator[None]:
        """Announce it for the time of a block."""
        started = time.monotonic()
        with busy(self._what, self.limit):
            yield
        taken = time.monotonic() - started
        self._longest = 0.0 if self._longest is None else max(self._longest, taken)

    @property
    def limit(self) -> float:
        """Seconds that the next time may take."""
        if not self._longest:  # the first time loads and warms up much that is there later: it is no measure
            return self._seconds
        return min(self._seconds, max(_LEAST, 10 * self._longest))
