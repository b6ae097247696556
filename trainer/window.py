"""The learner's side of `window.json`: it only moves forward, by compare-and-swap, at most once a second.

A learner whose swap fails reads again: a higher version or another learner's close means that it has been replaced.
"""

import time
from collections.abc import Callable

from schemas import keys
from schemas.errors import Fenced
from schemas.manifest import Window
from storage.control import read_window
from storage.objects import GenerationMismatch, ObjectStore
from trainer.progress import Progress


class WindowWriter:
    """Writes the window of one RL stage for one learner."""

    def __init__(
        self,
        store: ObjectStore,
        base: str,
        learner: str,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._base, self._learner = store, base, learner
        self._seconds, self._clock = seconds, clock
        self._written: Window | None = None
        self._generation = 0
        self._last = -1e9

    def move(self, progress: Progress, published: int, *, closed: bool = False, force: bool = False) -> bool:
        """Write the window if it has changed and enough time has passed (or `force`); whether it is up to date.

        Raises Fenced if another learner has moved it past this one.
        """
        wanted = self._window(progress, published, closed)
        if self._written == wanted:
            return True
        if not force and self._clock() - self._last < self._seconds:
            return False
        while not self._try(wanted):
            pass
        self._written, self._last = wanted, self._clock()
        return True

    def _window(self, progress: Progress, published: int, closed: bool) -> Window:
        return Window(
            version=published,
            step=progress.step,
            limit=progress.limit,
            low=progress.low,
            ended=tuple(sorted(progress.ended)),
            closed=closed,
            learner=self._learner,
        )

    def _try(self, wanted: Window) -> bool:
        if self._written is None:
            self._look(wanted)
        try:
            self._generation = self._store.swap(keys.window(self._base), wanted.to_bytes(), self._generation)
            return True
        except GenerationMismatch:
            self._look(wanted)
            return False

    def _look(self, wanted: Window) -> None:
        """Read the window as it stands; Fenced where it is ahead of this learner."""
        found = read_window(self._store, self._base)
        if found is None:
            self._generation = 0
            return
        window, self._generation = found
        if window.learner == self._learner:
            return
        foreign_close = window.closed and not wanted.closed and window.limit >= wanted.limit
        if (window.step, window.version) > (wanted.step, wanted.version) or foreign_close:
            raise Fenced(
                f"learner {window.learner} has moved the window of {self._base} to step {window.step}: it took over, "
                f"this learner (at step {wanted.step}) stops"
            )
