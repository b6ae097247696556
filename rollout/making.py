"""The environment of one episode: made in time or not, it is put away, and so are the tools of one that never came."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from rollout.cast import Cast
from rollout.environments import BaseTaskEnv
from rollout.hooks import call, detach, is_at_once, within
from rollout.tools import BaseTool, ToolManager, close_all
from schemas.data import Task


class Making:
    """Makes an environment, in any thread. Once it is given up, what comes of it is put away by who made it."""

    def __init__(self, cast: Cast, task: Task, seconds: float) -> None:
        """`seconds`: how long putting it away may take."""
        self._cast, self._task, self._seconds = cast, task, seconds
        self._loop, self._lock = asyncio.get_running_loop(), threading.Lock()
        self._ended = self._given_up = False
        self._tools: list[BaseTool] = []
        self._env: BaseTaskEnv | None = None

    def __call__(self) -> BaseTaskEnv:
        try:
            self._env = self._cast.make_environment(self._task, self._tools)
            return self._env
        finally:
            with self._lock:
                self._ended, late = True, self._given_up
            if late:
                self._too_late()

    def give_up(self) -> None:
        """Nobody takes the environment any more. Called once, on the event loop."""
        with self._lock:
            self._given_up, ended = True, self._ended
        if ended:
            self._start()

    def _too_late(self) -> None:
        """In the thread that made it. Its episode's loop may be gone by now."""
        try:
            self._loop.call_soon_threadsafe(self._start)
        except RuntimeError:
            asyncio.run(self._rest())

    def _start(self) -> None:
        detach(asyncio.ensure_future(self._rest()))

    def _rest(self) -> Coroutine[Any, Any, None]:
        return within(self._seconds, close_all(self._tools) if self._env is None else put_away(self._env))


async def made(cast: Cast, task: Task, seconds: float) -> BaseTaskEnv:
    """An environment, made within its deadline; HookTimeout after it. One whose making is all ours needs no thread."""
    making = Making(cast, task, seconds)
    try:
        return making() if cast.made_at_once else await within(seconds, call(making))
    except BaseException:
        making.give_up()
        raise


def holds(env: BaseTaskEnv) -> bool:
    """Whether there may be something to put away. What fails when it is looked at fails again where it is put away."""
    try:
        return not (is_at_once(env.close) and is_at_once(env.free_own)) or env.tools.holds
    except Exception:
        return True


async def put_away(env: BaseTaskEnv) -> None:
    """Close an environment and, however that goes, what its base class and its tools hold."""
    try:
        await call(env.close)
    finally:
        try:
            await call(env.free_own)
        finally:
            tools = getattr(env, "tools", None)  # its constructor may not have called ours
            if isinstance(tools, ToolManager):
                await tools.close()
