"""What joined workers say: a line of figures now and then for each, and whatever is not routine."""

import time
from collections.abc import Callable

from flows.lines import line
from tasks.children import Event

SECONDS = 10.0
"""Least time between two routine lines of one worker."""


class WorkerLines:
    """A sink that hands lines to `write`."""

    def __init__(self, write: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._last: dict[str, float] = {}

    def __call__(self, source: str, event: Event) -> None:
        text = self._routine(source, event) if event["event"] == "worker" else line(source, event)
        if text:
            self._write(text)

    def _routine(self, source: str, event: Event) -> str:
        now = self._clock()
        if now - self._last.get(source, -SECONDS) < SECONDS:
            return ""
        self._last[source] = now
        return (
            f"{source}: policy {event.get('version')}  {event.get('trajectories', 0):g} trajectories  "
            f"{event.get('in_flight')} in flight"
        )
