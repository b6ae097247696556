"""Telling a busy child from a hung one, by what it says itself (`storage.pulse`).

A child is hung when no beat came for the time of silence and none of the work that it announced may still be going on.
Time in which nobody looked is not held against it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from tasks.output import Event

START_SECONDS = 180.0
"""Until the first beat: an interpreter and its imports, on a disk that is cold and far."""
SIGNS = frozenset({"beat", "busy", "done"})
"""The events that are signs of progress."""
_ASLEEP = 5.0


@dataclass
class _Announced:
    what: str
    seconds: float
    until: float


class Patience:
    """The signs of life of one child. `silence`: seconds that it may go without one."""

    def __init__(
        self, silence: float, start: float = START_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._silence, self._clock = silence, clock
        self._limit = max(start, silence)
        self._heard = self._looked = clock()
        self._busy: dict[int, _Announced] = {}
        self.begun = False
        """Whether the child has given any sign."""

    def note(self, event: Event) -> None:
        """Take in what the child said; only signs of progress count."""
        kind, number, seconds = event["event"], event.get("id"), event.get("seconds")
        if kind not in SIGNS:
            return
        self._heard, self._limit, self.begun = self._clock(), self._silence, True
        if kind == "busy" and isinstance(number, int) and isinstance(seconds, int | float):
            self._busy[number] = _Announced(str(event.get("what")), seconds, self._heard + seconds)
        elif kind == "done" and isinstance(number, int):
            self._busy.pop(number, None)

    def hung(self) -> str:
        """Look at it now: in words why the child is taken for hung, or empty."""
        now = self._clock()
        if (gap := now - self._looked) > _ASLEEP:
            self._forgive(gap)
        self._looked = now
        if now - self._heard <= self._limit or any(work.until > now for work in self._busy.values()):
            return ""
        late = max(self._busy.values(), key=lambda work: work.until, default=None)
        if late is None:
            return f"made no progress for {self._limit:g} s and was killed"
        return f"was busy with {late.what} for longer than the {late.seconds:g} s that it announced, and was killed"

    def _forgive(self, seconds: float) -> None:
        """This process stood still, and what the child said meanwhile may not have been read."""
        self._heard += seconds
        for work in self._busy.values():
            work.until += seconds
