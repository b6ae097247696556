"""Calls into code that may block, hang or raise: environments, tools, rewards, agents.

Plain functions run in daemon threads, so that one that hangs neither stops the event loop nor the process's exit;
coroutines run on the loop. A call that is given up is left behind: its place is filled anew, and past a limit of calls
that hang at once the run stops, since threads can't be ended. What is ours and never waits is marked `at_once` and runs
in its caller's place, which costs neither task, timer nor thread.
"""

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from types import FunctionType, MethodType
from typing import Any, TypeVar

from rollout.threads import settled_elsewhere
from schemas.errors import RunStopped

Hook = TypeVar("Hook", bound=Callable[..., Any])
LOGGED = 500
"""Characters that are logged of an error that nobody waits for."""
_log = logging.getLogger("headrace.rollout")


class HookTimeout(Exception):
    """A hook ran past its deadline (a TimeoutError would be the hook's own)."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it took longer than {seconds:g} s")


class HookThreads:
    """Daemon threads that are reused; at most `limit` calls run at once, at most `hanging` are left behind.

    A thread that had nothing to do for `idle` seconds ends.
    """

    def __init__(self, limit: int = 512, hanging: int = 256, idle: float = 30.0) -> None:
        self._limit, self._hanging, self._idle = limit, hanging, idle
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._threads = 0
        self._open = 0
        self._left: dict[Future[Any], asyncio.AbstractEventLoop] = {}

    async def run(self, function: Callable[[], Any]) -> Any:
        """The result of a plain function, run in a thread. Cancelling leaves the running call behind."""
        future = self._submit(function)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel():
                self._leave(future)
            raise

    def _submit(self, function: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if len(self._left) >= self._hanging:
                raise RunStopped(
                    f"{len(self._left)} calls of the environment, its tools or its reward hang: give them time limits "
                    f"of their own, or raise environment.step_seconds if they are only slow"
                )
            self._open += 1
            self._grow()
            self._work.append((future, function))
            self._news.notify()
        return future

    def _grow(self) -> None:
        """Start a thread if calls wait for one and there may be more."""
        if self._threads < self._open and self._threads - len(self._left) < self._limit:
            self._threads += 1
            threading.Thread(target=self._serve, daemon=True, name="headrace-hook").start()

    def _leave(self, future: Future[Any]) -> None:
        """A running call whose caller has gone counts as hanging until it returns."""
        with self._lock:
            self._left[future] = asyncio.get_running_loop()
            self._grow()
        future.add_done_callback(self._returned)

    def _returned(self, future: Future[Any]) -> None:
        with self._lock:
            del self._left[future]
        if (error := future.exception()) is not None:
            _came_late(error)

    def returning(self) -> "list[asyncio.Future[Any]]":
        """What is settled as each call that the running loop has left behind returns."""
        loop, found = asyncio.get_running_loop(), []
        with self._lock:
            left = [future for future, at in self._left.items() if at is loop]
        for future in left:
            returned, settle = settled_elsewhere()
            future.add_done_callback(lambda _, settle=settle: settle(None, None))
            found.append(returned)
        return found

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            future, function = call
            if future.set_running_or_notify_cancel():
                _settle(future, function)
            with self._lock:
                self._open -= 1
            del future, function, call

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """A call for the thread that asks; None where it has idled long enough, and ends."""
        with self._news:
            if self._news.wait_for(lambda: self._work, self._idle):
                return self._work.popleft()
            self._threads -= 1
            return None


def _settle(future: Future[Any], function: Callable[[], Any]) -> None:
    try:
        result = function()
    except (StopIteration, CancelledError) as error:  # asyncio refuses the one, and takes the other for its own
        future.set_exception(_tamed(error))
    except Exception as error:
        future.set_exception(error)
    except BaseException as error:
        future.set_exception(_tamed(error))
    else:
        future.set_result(result)


def _tamed(error: BaseException) -> Exception:
    """What would end the whole process or confuse asyncio, as an ordinary error."""
    return RuntimeError(f"{type(error).__name__}: {said(error)}")


def said(error: BaseException) -> str:
    """What an exception says of itself, which may fail in turn."""
    try:
        return str(error)
    except Exception as other:
        return f"(its text can't be made: {type(other).__name__})"


THREADS = HookThreads()
"""The threads of this process."""

_left_behind: set[asyncio.Task[Any]] = set()
_AT_ONCE: set[Callable[..., Any]] = set()


def at_once(function: Hook) -> Hook:
    """Mark a function of ours that neither waits nor blocks nor runs anybody else's code. What overrides it is not
    marked."""
    _AT_ONCE.add(function)
    return function


def is_at_once(function: Callable[..., Any]) -> bool:
    """Whether a function, method or class (by its constructor) is marked."""
    if isinstance(function, type):
        return function.__new__ is object.__new__ and function.__init__ in _AT_ONCE
    plain = _plain(function)
    return type(plain) is FunctionType and plain in _AT_ONCE


def _plain(function: Callable[..., Any]) -> Any:
    return function.__func__ if type(function) is MethodType else function


def _is_async(function: Callable[..., Any]) -> bool:
    """As `inspect` says, which is asked only where a look does not do."""
    code = getattr(_plain(function), "__code__", None)
    return (code is not None and bool(code.co_flags & inspect.CO_COROUTINE)) or inspect.iscoroutinefunction(function)


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a hook, plain or async, without blocking the event loop."""
    try:
        if _is_async(function):
            return await function(*args, **kwargs)
        if is_at_once(function):
            return function(*args, **kwargs)
        result = await THREADS.run(lambda: function(*args, **kwargs))
        return await result if inspect.isawaitable(result) else result
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise _tamed(error) from error


async def within(seconds: float, hook: Coroutine[Any, Any, Any]) -> Any:
    """The hook's result; HookTimeout after `seconds`. A coroutine that ignores its cancellation is left behind."""
    loop = asyncio.get_running_loop()
    task, over = loop.create_task(hook), loop.create_future()

    def end(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    task.add_done_callback(end)
    timer = loop.call_later(seconds, end)
    try:
        await over
    except asyncio.CancelledError:
        leave_behind(task)
        raise
    finally:
        timer.cancel()
    if not task.done():
        leave_behind(task)
        raise HookTimeout(seconds)
    if task.cancelled():  # by itself or by what it waited for: nobody has given this episode up
        raise RuntimeError("CancelledError: it was cancelled from within")
    return task.result()


def leave_behind(task: asyncio.Task[Any]) -> None:
    """Cancel a task without waiting for it."""
    task.cancel()
    detach(task)


async def to_its_end(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of work that goes on where its caller is given up."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        detach(task)
        raise


def detach(task: asyncio.Task[Any]) -> None:
    """Let a task end by itself; what it raises is logged."""
    _left_behind.add(task)
    task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    _left_behind.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _came_late(error)


def _came_late(error: BaseException) -> None:
    cause = f"{type(error).__name__}: {said(error)}"[:LOGGED]
    _log.warning("a call of an environment or tool failed after its episode had gone on without it: %s", cause)


async def settle(seconds: float) -> None:
    """Give calls that were left behind, here and in threads, this long to end, before the loop closes."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while left := [*(t for t in _left_behind if t.get_loop() is loop), *THREADS.returning()]:
        if loop.time() >= end:
            return
        await asyncio.wait(left, timeout=end - loop.time())
