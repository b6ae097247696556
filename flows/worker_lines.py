"""What workers and evaluators elsewhere say: a line of figures now and then for each, and whatever is not routine."""

import time
from collections.abc import Callable

from flows.lines import Pace, line
from tasks.children import Event

SECONDS = 10.0
"""Least time between two routine lines of one process."""


class WorkerLines:
    """A sink that hands lines to `write`."""

    def __init__(self, write: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._pace = write, Pace({"worker": SECONDS, "evaluation": SECONDS}, clock)

    def __call__(self, source: str, event: Event) -> None:
        text = _worker(source, event) if event["event"] == "worker" else line(source, event)
        if text and self._pace.due(source, event):
            self._write(text)


def _worker(source: str, event: Event) -> str:
    return (
        f"{source}: policy {event.get('version')}  {event.get('trajectories', 0):g} trajectories  "
        f"{event.get('in_flight')} in flight"
    )
