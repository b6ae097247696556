"""An asyncio event loop on virtual time: nothing waits, deadlines pass as soon as nobody has anything else to do.

Time stands still while `busy()` says that threads are at work.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class Stuck(AssertionError):
    """Everybody waits for something that nobody will do."""


class _Selector(selectors.DefaultSelector):
    """Waits for threads in real time, and for the clock by moving it."""

    def __init__(self, busy: Callable[[], bool]) -> None:
        super().__init__()
        self.now, self._busy = 0.0, busy

    def select(self, timeout: float | None = None) -> list[Any]:
        while True:
            busy = self._busy()  # asked first: what a thread that is done now has left is then found
            found = super().select(0.001 if busy and timeout != 0 else 0)
            if found or not busy or timeout == 0:
                break
        if not found and timeout is None:
            raise Stuck("nobody has anything to do, and there are still tasks")
        self.now += 0.0 if found else timeout or 0.0
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, busy: Callable[[], bool]) -> None:
        self._virtual = _Selector(busy)
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run(main: Coroutine[Any, Any, Any], busy: Callable[[], bool] = lambda: False) -> Any:
    """What the coroutine returns, on a loop of its own."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(busy)) as runner:
        return runner.run(main)
