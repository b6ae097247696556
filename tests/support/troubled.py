"""A world in which a plan says which hook of which attempt goes wrong and how. It counts what was opened and closed."""

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from rollout import hooks
from rollout.agents import Action, ToolAgent
from rollout.cast import Cast
from rollout.engine import Completion, Request
from rollout.environments import StepResult, ToolEnvironment
from rollout.rewards import exact_match
from rollout.scripted import ScriptedEngine
from rollout.tools import BaseTool, ToolManager
from schemas.config import Run
from schemas.data import Task
from schemas.messages import Message
from support.rollouts import CALL, END, TOOL

Plan = Mapping[tuple[str, int], tuple[str, str]]
"""(task, attempt) → (hook, kind)."""
MAKING = ("constructor", "tool's making")
"""Hooks that can't be coroutines. The engine, beside them, is no stranger's code: it neither exits nor clings."""
HOOKS = (*MAKING, "reset", "engine", "step", "tool", "reward", "close", "tool's close")
PLAIN = ("raises", "exits", "blocks")
SLOW = "is slow"
"""Within its deadline: nothing comes of it."""
KINDS = (*PLAIN, "hangs", "clings", "is cancelled", SLOW)
POSSIBLE = {**dict.fromkeys(HOOKS, KINDS), **dict.fromkeys(MAKING, PLAIN), "engine": ("raises", "hangs", SLOW)}
TROUBLES = [(hook, kind) for hook in HOOKS for kind in POSSIBLE[hook]]


class Trouble:
    """What is planned, and what has come of it."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.threads = plan, hooks.HookThreads(idle=0.01)
        self.attempts: Counter[str] = Counter()
        self.opened: Counter[str] = Counter()
        self.closed: Counter[str] = Counter()
        self.released = threading.Event()
        self._blocked, self._lock = 0, threading.Lock()

    def busy(self) -> bool:
        """Whether a thread does something else than to block."""
        return self.threads._open > (0 if self.released.is_set() else self._blocked)

    def strike_plainly(self, kind: str) -> None:
        if kind == "raises":
            raise KeyError("lost")
        if kind == "exits":
            sys.exit(3)
        with self._lock:
            self._blocked += 1
        self.released.wait(60)
        with self._lock:
            self._blocked -= 1

    async def strike(self, kind: str) -> None:
        if kind == "blocks":
            await hooks.call(lambda: self.strike_plainly(kind))
        elif kind == "hangs":
            await asyncio.sleep(1e6)
        elif kind == "clings":
            for _ in range(3):
                try:
                    await asyncio.sleep(5.0)
                except asyncio.CancelledError:
                    continue
        elif kind == "is cancelled":
            raise asyncio.CancelledError
        elif kind == SLOW:
            await asyncio.sleep(0.5)
        else:
            self.strike_plainly(kind)


class Life:
    """One attempt's share of the plan."""

    def __init__(self, trouble: Trouble, task: str, attempt: int) -> None:
        self.trouble, self.task, self.attempt = trouble, task, attempt
        self.hook, self.kind = trouble.plan.get((task, attempt), ("", ""))

    def make(self, hook: str) -> None:
        if hook == self.hook:
            self.trouble.strike_plainly(self.kind)
        self.trouble.opened[f"{hook} {self.task} {self.attempt}"] += 1

    async def live(self, hook: str) -> None:
        """Others have their turn in any case."""
        await asyncio.sleep(sum(f"{self.task}{hook}".encode()) % 7 / 100)
        if hook == self.hook:
            await self.trouble.strike(self.kind)

    async def close(self, hook: str, made: str) -> None:
        """It counts as closed by its end; with trouble of its own, by its beginning."""
        if hook != self.hook:
            await self.live(hook)
        self.trouble.closed[f"{made} {self.task} {self.attempt}"] += 1
        if hook == self.hook:
            await self.live(hook)


class TroubledTool(BaseTool):
    name = "calculator"
    parameters: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    }
    life: Life

    def for_episode(self, shared: dict[Any, Any]) -> BaseTool:
        made = TroubledTool()
        made.life = _here.life
        made.life.make("tool's making")
        return made

    async def apply(self, expression: str) -> str:
        await self.life.live("tool")
        return expression[::-1]

    async def close(self) -> None:
        await self.life.close("tool's close", "tool's making")


class World(ToolEnvironment):
    def __init__(self, task: Task, **options: Any) -> None:
        super().__init__(task, **options)
        self.life = _here.life
        self.life.make("constructor")

    async def reset(self) -> Sequence[Message]:
        await self.life.live("reset")
        return await super().reset()

    async def step(self, action: Action) -> StepResult:
        await self.life.live("step")
        return await super().step(action)

    async def reward(self, messages: Sequence[Message]) -> Any:
        await self.life.live("reward")
        return await super().reward(messages)

    async def close(self) -> None:
        await self.life.close("close", "constructor")


class TroubledCast(Cast):
    """Says whose life it is, in the thread that makes it."""

    trouble: Trouble

    def make_environment(self, task: Task, made: list[BaseTool] | None = None) -> Any:
        trouble = TroubledCast.trouble
        _here.life = Life(trouble, task.id, trouble.attempts[task.id])
        trouble.attempts[task.id] += 1
        return super().make_environment(task, made)


_here = threading.local()


def cast(run: Run, trouble: Trouble) -> Cast:
    TroubledCast.trouble = trouble
    return TroubledCast(run.environment, ToolAgent, World, ToolManager([TroubledTool()]), exact_match)


class TroubledEngine(ScriptedEngine):
    """Times nothing, so that what is played twice is the same twice."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(answers, version=0)
        self._trouble = trouble

    async def generate(self, request: Request) -> Completion:
        task, _, attempt = request.session.rpartition("/")[2].rpartition("-")
        await Life(self._trouble, task, int(attempt)).live("engine")
        made = await super().generate(request)
        return replace(made, queue_seconds=0.0, generate_seconds=0.0)


def answers(stream: Sequence[int], seed: int, version: int) -> list[int]:
    """One to three calls and an answer, as the seed says."""
    done = stream.count(TOOL)
    if done < 1 or (done < 3 and seed % 2):
        return [CALL, *str(seed).encode(), END]
    return [*str(seed % 4).encode(), END]
