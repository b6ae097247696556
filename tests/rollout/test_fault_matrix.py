"""Every hook in every way to go wrong: one attempt pays, not its siblings, the ledger adds up, threads come back."""

import asyncio
import concurrent.futures
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from support import protocol
from support.rollouts import TASKS, TOKENIZER, config, solve
from support.turning import finish

from models.chat import chat_format
from rollout.agents import ToolAgent
from rollout.cast import Cast
from rollout.collect import TrajectoryCollectEngine
from rollout.environments import ToolEnvironment
from rollout.episode import Job
from rollout.hooks import settle
from rollout.orchestrator import RolloutOrchestrator
from rollout.rewards import exact_match
from rollout.scripted import ScriptedEngine
from rollout.tools import BaseTool, ToolManager
from schemas import keys
from schemas.messages import Message, ToolCall
from schemas.trajectory import Trajectory
from storage import audit, control
from storage.memory import MemoryStore

HOOKS = ("constructor", "tool's making", "reset", "step", "tool", "reward", "close", "tool's close")
MAKING = ("constructor", "tool's making")
"""Hooks that can't be coroutines."""
ERROR, TIMEOUT, FLOODED, FINE = "environment_error", "environment_timeout", "flooded", "succeeded"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Stubborn:
    """A value that can't be looked at."""

    def __float__(self) -> float:
        raise RuntimeError("no number")

    def __str__(self) -> str:
        raise RuntimeError("no words")


def slow_to_print() -> object:
    class Slow:
        def __str__(self) -> str:
            time.sleep(1.0)
            return "slow"

    return Slow()


def raises() -> Any:
    raise KeyError("lost")


def raises_unspeakably() -> Any:
    raise Unspeakable


def raises_megabytes() -> Any:
    raise ValueError("x" * 5_000_000)


async def hangs() -> Any:
    await asyncio.sleep(3600)


def blocks() -> Any:
    time.sleep(1.0)


def spins() -> Any:
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        pass


def dies() -> Any:
    sys.exit(3)


async def dies_in_the_loop() -> Any:
    raise KeyboardInterrupt


async def is_cancelled() -> Any:
    raise asyncio.CancelledError


def is_cancelled_in_a_thread() -> Any:
    raise concurrent.futures.CancelledError


async def leaves() -> Any:
    raise GeneratorExit


def returns(value: Any) -> Callable[[], Any]:
    return lambda: value


ALIKE = {
    "raises": (raises, ERROR),
    "raises unspeakably": (raises_unspeakably, ERROR),
    "raises megabytes": (raises_megabytes, ERROR),
    "hangs": (hangs, TIMEOUT),
    "blocks": (blocks, TIMEOUT),
    "spins": (spins, TIMEOUT),
    "dies": (dies, ERROR),
    "dies in the loop": (dies_in_the_loop, ERROR),
    "is cancelled": (is_cancelled, ERROR),
    "is cancelled in a thread": (is_cancelled_in_a_thread, ERROR),
    "leaves": (leaves, ERROR),
}
"""Faults with one status wherever they happen."""
RETURNED = [
    ("reset", "a flood", [Message("user", "x" * 5_000_000)], FLOODED),
    ("reset", "text", "2+2?", ERROR),
    ("reset", "a message that can't be kept", [Message("user", "?", (ToolCall("x", {"y": Stubborn()}),))], ERROR),
    ("step", "nothing", None, ERROR),
    ("tool", "a flood", "x" * 5_000_000, FLOODED),
    ("tool", "nothing to print", Stubborn(), ERROR),
    ("tool", "what is slow to print", slow_to_print(), TIMEOUT),
    ("reward", "text", "good", ERROR),
    ("reward", "a number beyond all bounds", 10**400, ERROR),
    ("reward", "what is no number", Stubborn(), ERROR),
    ("reward", "a flood of parts", {"reward": 1.0} | {f"part {i}": 0.0 for i in range(100_000)}, FLOODED),
    ("reward", "a flood in a name", {"reward": 1.0, "x" * 5_000_000: 0.0}, FLOODED),
    ("reward", "a flood of text", "x" * 5_000_000, ERROR),
    ("close", "a flood", "x" * 5_000_000, FINE),
    ("tool's making", "nothing", None, ERROR),
    ("tool's close", "a flood", "x" * 5_000_000, FINE),
]
CASES = [(hook, name, fault, status) for name, (fault, status) in ALIKE.items() for hook in HOOKS]
CASES = [c for c in CASES if c[0] not in MAKING or not asyncio.iscoroutinefunction(c[2])]
CASES += [(hook, f"returns {name}", returns(value), status) for hook, name, value, status in RETURNED]
COSTLY = [
    ("tool's making", spins),
    ("tool's close", spins),
    ("close", spins),
    ("reward", spins),
    ("tool's close", hangs),
]
PLAYED = [
    pytest.param(*c, marks=[pytest.mark.slow] if (c[0], c[2]) in COSTLY else [], id=f"{c[0]}-{c[1]}") for c in CASES
]


class World(ToolEnvironment):
    """Goes wrong in one hook of the first attempt at one sample."""

    hook: ClassVar[str] = ""
    fault: ClassVar[Callable[[], Any]]
    chosen: ClassVar[bool] = False

    def __init__(self, task: Any, **options: Any) -> None:
        self.bad = task.id == TASKS[0].id and World.hook in ("constructor", *WORLDS) and chosen()
        super().__init__(task, **options)
        if self.bad and World.hook == "constructor":
            World.fault()

    def __getattribute__(self, name: str) -> Any:
        if name in WORLDS and (fault := World.fault_in(name, self.bad)):
            return fault
        return super().__getattribute__(name)

    @staticmethod
    def fault_in(hook: str, bad: bool) -> Callable[..., Any] | None:
        """The fault as that hook, plain or async, if that is where something bad goes wrong."""
        fault = World.fault
        if not bad or World.hook != hook:
            return None
        if not asyncio.iscoroutinefunction(fault):
            return lambda *_, **__: fault()

        async def late(*_: Any, **__: Any) -> Any:
            return await fault()

        return late


WORLDS = ("reset", "step", "reward", "close")


def chosen() -> bool:
    """Whether this is the first to ask."""
    first, World.chosen = not World.chosen, True
    return first


class Calculator(BaseTool):
    """Goes wrong in the first episode that it is made for, or that it is called or closed in."""

    name = "calculator"
    parameters: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    }
    made: ClassVar[list["Calculator"]] = []
    closed: ClassVar[list["Calculator"]] = []

    def for_episode(self, shared: dict[Any, Any]) -> Any:
        if World.hook == "tool's making" and chosen():
            return World.fault()
        tool = Calculator()
        bad = World.hook in ("tool", "tool's close") and chosen()
        tool.apply = World.fault_in("tool", bad) or (lambda expression: str(eval(expression)))  # type: ignore[method-assign]
        tool.close = World.fault_in("tool's close", bad) or tool.close  # type: ignore[method-assign]
        self.made.append(tool)
        return tool

    async def close(self) -> None:
        self.closed.append(self)


async def play() -> list[Trajectory]:
    """Three groups of two, at most three attempts each."""
    run = config(environment={"step_seconds": 0.5, "reward_seconds": 0.5})
    cast = Cast(run.environment, ToolAgent, World, ToolManager([Calculator()]), exact_match)
    chat = chat_format(TOKENIZER, cast.tool_specs)
    engine = ScriptedEngine(solve, version=0)
    made = TrajectoryCollectEngine(engine, chat, cast, run, run="r", seed=7, worker="w", temperature=1.0)
    rows: list[Trajectory] = []
    orchestrator = RolloutOrchestrator(made.collect, rows.append, max_concurrency=6, attempts=3)
    ticks, done = [], asyncio.Event()

    async def tick() -> None:
        while not done.is_set():
            ticks.append(time.monotonic())
            await asyncio.sleep(0.02)

    ticking = asyncio.ensure_future(tick())
    await asyncio.wait_for(orchestrator.run([Job(g, s, 0, TASKS[g]) for g in range(3) for s in range(2)]), 15)
    assert orchestrator.in_flight == orchestrator.queued == 0
    done.set()
    await ticking
    await settle(5.0)
    return rows


def ends(rows: list[Trajectory]) -> dict[str, int]:
    """Where a real learner's ledger ends these rows, once the audit has found it in order."""
    store, run = MemoryStore("test"), protocol.config(steps=1, groups_per_batch=3, group_size=2)
    learner, worker = protocol.learner(store, run), protocol.FakeWorker(store, run)
    store.create(keys.spec(protocol.BASE), protocol.spec(run).to_bytes())
    learner.recover()
    for group in range(3):
        control.create_claim(store, protocol.BASE, group, worker.name, 0)
    for row in rows:
        worker.writer.add(replace(row, run="test", worker=worker.name))
    worker.writer.seal()
    assert learner.tick()
    finish(learner, [worker])
    found = audit.verify(store, "test")
    assert found.ok, found.violations
    return found.to_json()["dispositions"]


@pytest.mark.parametrize(("hook", "name", "fault", "status"), PLAYED)
async def test_one_attempt_pays(hook: str, name: str, fault: Callable[[], Any], status: str) -> None:
    World.hook, World.fault, World.chosen = hook, staticmethod(fault), False  # type: ignore[assignment]
    Calculator.made.clear()
    Calculator.closed.clear()
    rows = await play()
    failed = [r for r in rows if r.failed]
    assert [r.status for r in failed] == ([] if status == FINE else [status]), [r.detail for r in rows]
    assert all(r.detail and len(r.detail) <= 500 for r in failed)
    assert all(r.attempt == 0 for r in failed)
    assert len({id(t) for t in Calculator.made} - {id(t) for t in Calculator.closed}) == (hook == "tool's close")
    good = [r for r in rows if not r.failed]
    assert sorted((r.group, r.sample) for r in good) == [(g, s) for g in range(3) for s in range(2)]
    assert all(r.reward == 1.0 and r.status == "succeeded" for r in good)
    assert sorted(r.attempt for r in good) == [0] * (6 - len(failed)) + [1] * len(failed)
    assert all(len(r.messages) < 50_000 and len(r.components) < 600 for r in rows)
    assert ends(rows) == {"trained": 6} | ({"failed": len(failed)} if failed else {})


async def test_threads_are_reused_and_do_not_pile_up() -> None:
    def hooks() -> int:
        return sum(t.name == "headrace-hook" for t in threading.enumerate())

    World.hook, World.fault = "step", staticmethod(blocks)  # type: ignore[assignment]
    for _ in range(3):
        World.chosen = False
        await play()
    before = hooks()
    for _ in range(3):
        World.chosen = False
        await play()
    assert hooks() <= before + 1
