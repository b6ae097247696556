"""Hooks that block, hang, raise or ignore their cancellation."""

import asyncio
import contextlib
import functools
import threading

import pytest

from rollout.agents import ToolAgent
from rollout.environments import BaseTaskEnv
from rollout.hooks import HookThreads, HookTimeout, call, is_at_once, within
from rollout.rewards import exact_match
from schemas.data import Task
from schemas.errors import RunStopped


async def test_blocking_hooks_run_side_by_side_and_not_on_the_loop() -> None:
    together = threading.Barrier(8, timeout=10)  # would break if they ran one after another
    await asyncio.gather(*(within(20, call(together.wait)) for _ in range(8)))
    assert await call(threading.current_thread) is not threading.main_thread()


async def test_async_hooks_run_on_the_loop() -> None:
    async def hook(x: int) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert await call(hook, x=1) is asyncio.get_running_loop()


def test_only_what_is_ours_runs_in_its_callers_place() -> None:
    class Own(BaseTaskEnv):
        @functools.wraps(BaseTaskEnv.reset)
        async def reset(self):  # type: ignore[no-untyped-def]
            return await super().reset()

    class Made(ToolAgent):
        def __new__(cls, *_: object) -> "Made":
            return super().__new__(cls)

    world = Own(Task("t", "?", "!"))
    assert is_at_once(exact_match) and is_at_once(world.close) and is_at_once(Own) and is_at_once(ToolAgent)
    assert not (is_at_once(world.reset) or is_at_once(Made) or is_at_once(lambda: 0) or is_at_once(print))


@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt, TimeoutError, ValueError])
async def test_whatever_a_hook_raises_is_an_ordinary_error(error: type[BaseException]) -> None:
    def plain() -> None:
        raise error("cause")

    with pytest.raises(Exception, match="cause"):
        await within(5, call(plain))


@pytest.mark.parametrize("error", [SystemExit, ValueError])
async def test_an_async_hook_cannot_end_the_process(error: type[BaseException]) -> None:
    async def hook() -> None:
        raise error("cause")

    with pytest.raises(Exception, match="cause"):
        await within(5, call(hook))


async def test_a_hanging_thread_and_a_stubborn_coroutine_are_left_behind() -> None:
    release = threading.Event()

    async def stubborn() -> None:
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    for hook in (call(release.wait), call(stubborn)):
        with pytest.raises(HookTimeout):
            await within(0.05, hook)
    assert await call(lambda: "still works") == "still works"
    release.set()


async def test_a_hook_that_never_began_is_dropped_when_it_is_cancelled() -> None:
    threads, release, ran = HookThreads(limit=1), threading.Event(), []
    busy = asyncio.ensure_future(threads.run(release.wait))
    await asyncio.sleep(0.05)
    waiting = asyncio.ensure_future(threads.run(lambda: ran.append(1)))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    release.set()
    await busy
    assert await threads.run(lambda: 3) == 3
    assert not ran


async def test_hanging_calls_do_not_take_the_places_of_others_until_there_are_too_many() -> None:
    threads, release = HookThreads(limit=1, hanging=3), threading.Event()
    for _ in range(2):
        with pytest.raises(HookTimeout):
            await within(0.05, threads.run(release.wait))
    assert await threads.run(lambda: 1) == 1
    with pytest.raises(HookTimeout):
        await within(0.05, threads.run(release.wait))
    await asyncio.sleep(0)  # the cancellation arrives
    with pytest.raises(RunStopped, match="3 calls of the environment"):
        await threads.run(lambda: 1)
    release.set()
    while True:  # they return one by one, and then there is room again
        try:
            assert await threads.run(lambda: 1) == 1
            break
        except RunStopped:
            await asyncio.sleep(0.01)
