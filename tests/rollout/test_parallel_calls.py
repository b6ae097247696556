"""Several tool calls in one turn: they run side by side, are answered in order, and one that fails harms no other."""

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from support.chats import TOKENIZERS
from support.rollouts import config

from models.chat import chat_format
from rollout.agents import ToolAgent
from rollout.cast import Cast, load_cast
from rollout.collect import TrajectoryCollectEngine
from rollout.environments import ToolEnvironment
from rollout.episode import Job
from rollout.rewards import exact_match
from rollout.scripted import ScriptedEngine
from rollout.tools import AT_THE_SAME_TIME, BaseTool, ToolError, ToolManager
from schemas.data import Task
from schemas.messages import Message, ToolCall
from schemas.trajectory import Trajectory

TASK = Task("t", "?", "done")
DONE = Message("assistant", "done")


class Act(BaseTool):
    """Does what its argument names."""

    name = "act"
    parameters: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"how": {"type": "string"}, "number": {"type": "integer"}},
        "required": ["how"],
    }
    together: ClassVar[threading.Barrier]
    ended: ClassVar[list[str]]
    open: ClassVar[int]
    most: ClassVar[int]

    def apply(self, how: str, number: int = 0) -> str:
        if how == "meet":
            self.together.wait()
        if how == "block":
            time.sleep(1.0)
            return "too late"
        if how == "raise":
            raise OSError("lost")
        if how == "refuse":
            raise ToolError("not that")
        self.ended.append(f"{how} {number}")
        return f"{how} {number}"


class Wait(BaseTool):
    """Waits on the loop."""

    name = "wait"
    parameters: ClassVar[dict[str, Any]] = {"type": "object", "properties": {"number": {"type": "integer"}}}

    async def apply(self, number: int = 0) -> str:
        if number < 0:
            await asyncio.sleep(3600)
        Act.open += 1
        Act.most = max(Act.most, Act.open)
        await asyncio.sleep(0.01)
        Act.open -= 1
        Act.ended.append(f"wait {number}")
        return f"wait {number}"


class InOrder(Wait):
    name = "in_order"
    concurrent = False


@pytest.fixture(autouse=True)
def fresh() -> None:
    Act.together, Act.ended, Act.open, Act.most = threading.Barrier(3, timeout=20), [], 0, 0


def turn(*calls: tuple[str, dict[str, Any]]) -> Message:
    made = tuple(ToolCall(name, arguments, id=f"call_{i}") for i, (name, arguments) in enumerate(calls))
    return Message("assistant", tool_calls=made)


def act(*hows: str) -> Message:
    return turn(*(("act", {"how": how, "number": i}) for i, how in enumerate(hows)))


def play(*turns: Message, form: str = "ours", seeds: list[int] | None = None, **environment: Any) -> Trajectory:
    """The episode in which these turns are said, in a chat format."""
    run = config(environment={"tools": []} | environment, rollout={"max_length": 4096, "max_tokens_per_turn": 2048})
    tools = ToolManager([Act(), Wait(), InOrder()], call_seconds=run.environment.call_seconds)
    cast = Cast(run.environment, ToolAgent, ToolEnvironment, tools, exact_match)
    chat, said = chat_format(TOKENIZERS[form], cast.tool_specs), iter(turns)

    def script(stream: Sequence[int], seed: int, version: int) -> list[int]:
        if seeds is not None:
            seeds.append(seed)
        return chat.assistant(next(said))

    made = TrajectoryCollectEngine(
        ScriptedEngine(script, version=0), chat, cast, run, run="r", seed=7, worker="w", temperature=1.0
    )
    return asyncio.run(made.collect(Job(0, 0, 0, TASK)))


def read(row: Trajectory) -> list[str]:
    return [m["content"] for m in json.loads(row.messages) if m["role"] == "tool"]


@pytest.mark.parametrize("form", TOKENIZERS)
def test_calls_of_a_turn_run_side_by_side_and_are_answered_in_order(form: str) -> None:
    row = play(act("meet", "meet", "meet"), DONE, form=form)  # would break if they ran one after another
    assert (row.status, row.reward, read(row)) == ("succeeded", 1.0, ["meet 0", "meet 1", "meet 2"])
    told = [m for m in json.loads(row.messages) if m["role"] == "tool"]
    assert [m["tool_call_id"] for m in told] == ["call_0", "call_1", "call_2"]


def test_the_stream_and_its_seeds_do_not_depend_on_who_ends_first() -> None:
    first: list[int] = []
    second: list[int] = []
    one = play(turn(("wait", {"number": 1}), ("act", {"how": "fine"})), DONE, seeds=first)
    assert Act.ended == ["fine 0", "wait 1"]
    two = play(turn(("wait", {"number": 1}), ("act", {"how": "fine"})), DONE, seeds=second)
    assert one.tokens == two.tokens and first == second and len(set(first)) == 2
    assert read(one) == ["wait 1", "fine 0"]


def test_what_the_model_got_wrong_in_one_call_is_answered_beside_the_others() -> None:
    calls = turn(("act", {"how": "fine"}), ("act", {"how": "refuse"}), ("act", {}), ("wait", {"number": 4}))
    row = play(calls, DONE)
    assert row.status == "succeeded"
    assert read(row) == ["fine 0", "Error: not that", "Error: the argument 'how' is missing.", "wait 4"]


def test_a_tool_that_breaks_ends_the_episode_after_its_siblings_have_ended() -> None:
    row = play(turn(("act", {"how": "raise"}), ("wait", {"number": 1}), ("act", {"how": "fine"})), DONE)
    assert (row.status, row.detail) == ("environment_error", "step raised OSError: lost")
    assert sorted(Act.ended) == ["fine 0", "wait 1"]


@pytest.mark.parametrize("hanging", [("act", {"how": "block"}), ("wait", {"number": -1})])
def test_a_call_that_hangs_is_answered_when_its_own_deadline_passes(hanging: tuple[str, dict[str, Any]]) -> None:
    row = play(turn(hanging, ("act", {"how": "fine"}), ("wait", {"number": 2})), DONE, call_seconds=0.3)
    assert (row.status, row.reward) == ("succeeded", 1.0)
    assert read(row) == ["Error: the call took longer than 0.3 s.", "fine 0", "wait 2"]
    told = [m for m in json.loads(row.messages) if m["role"] == "tool"]
    assert [m.get("facts") for m in told] == [{"timeout": 0.3}, None, None]


def test_without_such_a_deadline_the_steps_ends_the_episode() -> None:
    row = play(turn(("wait", {"number": -1}), ("act", {"how": "fine"})), DONE, step_seconds=0.3)
    assert (row.status, row.detail) == ("environment_timeout", "step took longer than 0.3 s")
    assert Act.ended == ["fine 0"]


def test_tools_that_ask_for_it_are_run_in_order() -> None:
    calls = [("in_order", {"number": i}) for i in range(3)]
    row = play(turn(*calls, ("wait", {"number": 3}), ("wait", {"number": 4}), ("in_order", {"number": 5})), DONE)
    assert read(row) == Act.ended == [f"wait {i}" for i in range(6)]
    assert Act.most == 2


def test_a_turn_of_hundreds_of_calls_takes_few_places_at_once() -> None:
    row = play(turn(*(("wait", {"number": i}) for i in range(100))), DONE, max_observation=100_000)
    assert read(row) == [f"wait {i}" for i in range(100)]
    assert Act.most == AT_THE_SAME_TIME


def test_workspace_tools_act_in_the_order_of_the_calls() -> None:
    built = load_cast(
        config(environment={"tools": ["calculator", "shell", "edit", "finish"]} | WORKSPACE).environment, "."
    )
    assert {t.name: t.concurrent for t in built.tools.tools} == {
        "calculator": True, "shell": False, "edit": False, "finish": False,
    }  # fmt: skip


WORKSPACE = {"environment": "WorkspaceEnvironment", "options": {"sandbox": "process"}}
