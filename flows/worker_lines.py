"""What workers and evaluators elsewhere say: a line of figures now and then for each, and whatever is not routine."""

import time
from collections.abc import Callable

from flows.lines import line
from tasks.children import Event

SECONDS = 10.0
"""Least time between two routine lines of one process."""
_ROUTINE = frozenset({"worker", "evaluation"})


class WorkerLines:
    """A sink that hands lines to `write`."""

    def __init__(self, write: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._last: dict[str, float] = {}

    def __call__(self, source: str, event: Event) -> None:
        text = _worker(source, event) if event["event"] == "worker" else line(source, event)
        if text and (event["event"] not in _ROUTINE or self._due(source, event)):
            self._write(text)

    def _due(self, source: str, event: Event) -> bool:
        """Whether it is time for another routine line; the last of an evaluation always is."""
        now, last = self._clock(), "done" in event and event["done"] == event.get("n")
        if not last and now - self._last.get(source, -SECONDS) < SECONDS:
            return False
        self._last[source] = now
        return True


def _worker(source: str, event: Event) -> str:
    return (
        f"{source}: policy {event.get('version')}  {event.get('trajectories', 0):g} trajectories  "
        f"{event.get('in_flight')} in flight"
    )
