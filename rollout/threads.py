"""Futures that another thread settles."""

import asyncio
from collections.abc import Callable
from typing import Any


def settled_elsewhere() -> tuple["asyncio.Future[Any]", Callable[[Any, BaseException | None], None]]:
    """A future of the running loop, and what settles it from any thread with (result, error); late calls do nothing."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def from_thread(result: Any, error: BaseException | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    return future, from_thread
