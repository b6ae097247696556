"""What an episode was made of is put away: too late, only in part, after its event loop, or while it is given up."""

import asyncio
import logging
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.rollouts import TASKS, config

from rollout.agents import ToolAgent
from rollout.cast import Cast
from rollout.environments import BaseTaskEnv, ToolEnvironment
from rollout.hooks import HookThreads, HookTimeout, call, settle, within
from rollout.making import made, put_away
from rollout.rewards import exact_match
from rollout.sandbox_process import ProcessSandbox
from rollout.tools import BaseTool, ToolManager
from rollout.workspace import Workspace


class Held(BaseTool):
    """A tool that says which of it are open."""

    name = "held"
    open: ClassVar[list["Held"]] = []

    def for_episode(self, shared: dict[Any, Any]) -> BaseTool:
        self.open.append(tool := type(self)())
        return tool

    async def close(self) -> None:
        self.open.remove(self)


class Odd(Held):
    name = "odd"
    close: Any = property(lambda _: 1 / 0)


class Missing(Held):
    name = "missing"

    def for_episode(self, shared: dict[Any, Any]) -> Any:
        return None


def cast(environment: type[BaseTaskEnv], *tools: BaseTool) -> Cast:
    Held.open.clear()
    return Cast(config().environment, ToolAgent, environment, ToolManager(tools), exact_match)


def held_up(then: Callable[[], Any] = lambda: None) -> tuple[threading.Event, type[BaseTaskEnv]]:
    """An environment whose constructor waits until it is let go."""
    go = threading.Event()

    class HeldUp(ToolEnvironment):
        def __init__(self, task: Any, **options: Any) -> None:
            super().__init__(task, **options)
            assert go.wait(60)
            then()

    return go, HeldUp


async def test_what_is_made_too_late_is_closed() -> None:
    go, environment = held_up()
    with pytest.raises(HookTimeout):
        await made(cast(environment, Held()), TASKS[0], 0.05)
    assert len(Held.open) == 1
    go.set()
    await settle(60)
    assert not Held.open


async def test_what_fails_too_late_is_closed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    go, environment = held_up(lambda: {}["lost"])
    making = asyncio.ensure_future(made(cast(environment, Held()), TASKS[0], 60))
    while not Held.open:
        await asyncio.sleep(0.01)
    making.cancel()
    await asyncio.wait([making])
    with caplog.at_level(logging.WARNING, "headrace.rollout"):
        go.set()
        await settle(60)
    assert not Held.open and "KeyError: 'lost'" in caplog.text


def test_a_thread_that_outlives_the_loop_closes_what_it_made() -> None:
    go, environment = held_up()
    with pytest.raises(HookTimeout):
        asyncio.run(made(cast(environment, Held()), TASKS[0], 0.05))
    assert len(Held.open) == 1
    go.set()
    end = time.monotonic() + 60
    while Held.open and time.monotonic() < end:
        time.sleep(0.01)
    assert not Held.open


@pytest.mark.parametrize("last", [Missing, Odd])
async def test_tools_of_what_can_not_be_made_are_closed(last: type[Held]) -> None:
    class Fails(ToolEnvironment):
        def __init__(self, task: Any, **options: Any) -> None:
            raise KeyError("lost")

    with pytest.raises(TypeError if last is Missing else KeyError, match="missing" if last is Missing else "lost"):
        await made(cast(Fails, Held(), last()), TASKS[0], 60)
    await settle(60)
    assert [type(tool) for tool in Held.open] == [Odd] * (last is Odd)


async def test_every_tool_is_closed_whatever_another_does() -> None:
    class Fails(ToolEnvironment):
        def close(self) -> None:  # type: ignore[override]
            raise KeyError("lost")

    env = await made(cast(Fails, Odd(), Held()), TASKS[0], 60)
    with pytest.raises(ZeroDivisionError):
        await put_away(env)
    assert [type(tool) for tool in Held.open] == [Odd]


async def test_a_workspace_that_opens_after_it_was_closed_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    workspace = Workspace(ProcessSandbox())
    await workspace.close()
    workspace.open({"a.txt": "text"})
    assert not list(tmp_path.iterdir())


async def test_threads_without_work_end() -> None:
    threads, together = HookThreads(idle=0.05), threading.Barrier(4, timeout=60)
    before = threading.active_count()
    await asyncio.gather(*(threads.run(together.wait) for _ in range(4)))
    end = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < end:
        await asyncio.sleep(0.01)
    assert threading.active_count() <= before
    assert await threads.run(threading.current_thread) is not threading.current_thread()


async def test_a_call_in_a_thread_that_was_left_behind_is_waited_for() -> None:
    go, ended = threading.Event(), threading.Event()
    with pytest.raises(HookTimeout):
        await within(0.05, call(lambda: go.wait(60) and ended.set()))
    await settle(0.01)
    assert not ended.is_set()
    go.set()
    await settle(60)
    assert ended.is_set()
