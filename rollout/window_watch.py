"""The window as this worker last read it. Nothing older is ever used again."""

import asyncio
import time
from collections.abc import Callable

from schemas.manifest import Window
from storage.control import read_window
from storage.objects import ObjectStore


class WindowWatch:
    """Reads the window at most every `seconds`."""

    def __init__(
        self, store: ObjectStore, base: str, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._base, self._seconds, self._clock = store, base, seconds, clock
        self._next = float("-inf")
        self.window: Window | None = None

    @property
    def due_in(self) -> float:
        """Seconds until the next read."""
        return max(0.0, self._next - self._clock())

    async def look(self) -> bool:
        """Read the window if it is time; returns whether it was read."""
        if self.due_in > 0:
            return False
        self._next = self._clock() + self._seconds
        found = await asyncio.to_thread(read_window, self._store, self._base)
        if found is not None:
            self.window = found[0]
        return found is not None
