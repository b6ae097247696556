"""One worker plays hundreds of episodes, of which many fail, hang or are cancelled: what it holds does not grow."""

import asyncio
import gc
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.rollouts import BASE, config, load, put_window, sealed, stage

from rollout import hooks
from rollout.sandbox_choice import SANDBOXES, why_not_bubblewrap
from rollout.worker import Worker
from rollout.workspace import Workspace
from schemas.data import Task
from storage.control import read_claim

pytestmark = pytest.mark.skipif(not shutil.which("prlimit"), reason="needs Linux with prlimit")

WORLD = """
import asyncio, time
from rollout.hooks import call
from rollout.workspace_environment import WorkspaceEnvironment
from schemas.messages import Message

class World(WorkspaceEnvironment):
    def __init__(self, task, **options):
        super().__init__(task, **options)
        self._sync("constructor")

    def _sync(self, hook):
        where, way = self.task.extra.get("fault", ("", ""))
        if where == hook and way == "raise":
            raise OSError("lost")
        if where == hook and way == "block":
            time.sleep(3)

    async def _fault(self, hook):
        where, way = self.task.extra.get("fault", ("", ""))
        if where == hook and way == "hang":
            await asyncio.sleep(3600)
        await call(self._sync, hook) if way == "block" else self._sync(hook)

    async def reset(self):
        found = await super().reset()
        await self._fault("reset")
        return found

    async def step(self, action):
        await self._fault("step")
        return await super().step(action)

    async def reward(self, messages):
        await self._fault("reward")
        return await super().reward(messages)

    async def close(self):
        await self._fault("close")
        await super().close()

class Blocking(World):
    def reset(self):
        self.workspace.open({"a.txt": "text"})
        self._sync("reset")
        return [Message("user", self.task.prompt)]

    def close(self):
        self._sync("close")
"""
SLEEP = f"sleep 3600.{os.getpid()}"
"""What no other process on the machine is called."""
BACKENDS = [b for b in SANDBOXES if b != "bubblewrap" or not why_not_bubblewrap()]
COMMANDS = (f"{SLEEP}=?", f"{SLEEP} & echo 4=?", "yes=?", "cat a.txt; exit 3=?")
FAULTS = [("constructor", "raise"), ("constructor", "block")]
FAULTS += [(hook, way) for hook in ("reset", "step", "reward", "close") for way in ("raise", "hang", "block")]
EXTRAS = [{"fault": fault} for fault in FAULTS] + [{}] * 6
TASKS = [Task(f"c{i}", command, "4") for i, command in enumerate(COMMANDS)]
TASKS += [Task(f"t{i}", "echo 4=?", "4", extra) for i, extra in enumerate(EXTRAS)]
Held = dict[str, int]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go. Hooks have threads of their own, which soon end."""
    (tmp_path / "scripts.py").write_text("from support.rollouts import solve")
    (tmp_path / "worlds.py").write_text(WORLD)
    made = Path(tempfile.mkdtemp(prefix="headrace-leaks-"))
    made.chmod(0o755)  # commands may be another user's
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    monkeypatch.setattr(hooks, "THREADS", hooks.HookThreads(idle=0.05))
    yield tmp_path
    shutil.rmtree(made)


@pytest.fixture
def workspaces(monkeypatch: pytest.MonkeyPatch) -> "weakref.WeakSet[Workspace]":
    """Those that are somewhere in memory."""
    alive: weakref.WeakSet[Workspace] = weakref.WeakSet()
    plain = Workspace.__init__

    def noted(self: Workspace, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        alive.add(self)

    monkeypatch.setattr(Workspace, "__init__", noted)
    return alive


def held(workspaces: "weakref.WeakSet[Workspace]", others: set[threading.Thread]) -> Held:
    """What there is now, but for threads of others, which may end at any time."""
    gc.collect()
    return {
        "threads": len(set(threading.enumerate()) - others),
        "tasks": len(asyncio.all_tasks()),
        "left behind": len(hooks._left_behind),
        "files": len(os.listdir("/proc/self/fd")),
        "children": sum(len(c.read_text().split()) for c in Path("/proc/self/task").glob("*/children")),
        "folders": len(list(Path(tempfile.gettempdir()).iterdir())),
        "workspaces": len(workspaces),
    }


def commands() -> int:
    """Processes of commands, whoever their parent is by now."""
    return sum(SLEEP in " ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))


async def until(condition: Callable[[], Any], seconds: float = 240.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        await asyncio.sleep(0.2)
    return found


async def least(count: Callable[[], Held], wanted: Held) -> Held:
    """What is held, once that is as it should be, or when it has had time enough."""
    found = count()
    await until(lambda: found.update(count()) or all(now <= wanted[name] for name, now in found.items()), 30.0)
    return found


class Stage:
    """A worker whose learner is the test."""

    def __init__(self, folder: Path, environment: str, sandbox: str) -> None:
        self.in_flight = 0
        run = config(
            environment={
                "environment": f"worlds:{environment}", "options": {"sandbox": sandbox}, "tools": ["shell"],
                "step_seconds": 2, "reward_seconds": 2,
            },
            rollout={"attempts": 1, "max_concurrency": 16, "quarantine_after": 0, "max_tokens_per_turn": 200},
        )  # fmt: skip
        self.store, spec = stage(run, str(folder), TASKS)
        worker = Worker(self.store, BASE, spec, load=load, report=self._report, stop=bool)
        self.working = asyncio.ensure_future(worker.run())

    def _report(self, _: str, **figures: Any) -> None:
        self.in_flight = figures["in_flight"]

    async def play(self, first: int, limit: int) -> None:
        """These groups; every third of them ends as it is claimed, and is given up."""
        put_window(self.store, limit)
        assert await until(lambda: self.working.done() or self._end_thirds(first, limit))
        assert await until(lambda: self.working.done() or (self._whole(first, limit) and not self.in_flight))
        assert not self.working.done() or self.working.result()

    def _end_thirds(self, first: int, limit: int) -> bool:
        claimed = [g for g in range(first, limit) if read_claim(self.store, BASE, g)]
        put_window(self.store, limit, ended=[*range(first), *(g for g in claimed if g % 3 == 0)])
        return len(claimed) == limit - first

    def _whole(self, first: int, limit: int) -> bool:
        rows = {(r.group, r.sample) for r in sealed(self.store)}
        return rows >= {(g, s) for g in range(first, limit) if g % 3 for s in range(2)}

    async def close(self, limit: int) -> None:
        """With episodes in flight."""
        put_window(self.store, limit, ended=range(limit - 6))
        await until(lambda: self.in_flight)
        put_window(self.store, 0, version=99, closed=True)
        await self.working


async def check(folder: Path, workspaces: "weakref.WeakSet[Workspace]", environment: str, sandbox: str, n: int) -> None:
    """A first round of groups, `n` more, and some that are not played to their end: nothing has grown."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))
    together = threading.Barrier(4)
    await asyncio.gather(*(asyncio.to_thread(together.wait) for _ in range(4)))  # it has all its threads now

    others = set(threading.enumerate())

    def count() -> Held:
        return held(workspaces, others)

    before, made = count(), Stage(folder, environment, sandbox)
    await made.play(0, len(TASKS))
    at_rest = await least(count, before | {"tasks": 10, "threads": 10})
    await made.play(len(TASKS), len(TASKS) + n)
    later = await least(count, at_rest)
    assert all(later[name] <= at_rest[name] for name in before), (at_rest, later)
    await made.close(len(TASKS) + n + 6)
    after = await least(count, before)
    assert all(after[name] <= before[name] for name in before), (before, after)
    assert await until(lambda: not commands(), 30.0)
    assert {r.status for r in sealed(made.store)} >= {"succeeded", "environment_error", "environment_timeout"}


async def test_nothing_is_left_of_episodes_that_fail_hang_or_are_given_up(
    folder: Path, workspaces: "weakref.WeakSet[Workspace]"
) -> None:
    await check(folder, workspaces, "World", "", 24)


@pytest.mark.slow
@pytest.mark.parametrize("environment", ["World", "Blocking"])
@pytest.mark.parametrize("sandbox", BACKENDS)
async def test_nothing_is_left_of_hundreds_of_them(
    folder: Path, workspaces: "weakref.WeakSet[Workspace]", environment: str, sandbox: str
) -> None:
    await check(folder, workspaces, environment, sandbox, 150)
