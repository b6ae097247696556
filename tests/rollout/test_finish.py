"""The tool `finish` ends an episode with an answer that reward functions see, in every environment with tools."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from support.chats import TOKENIZERS
from support.rollouts import config

from models.chat import chat_format
from rollout.cast import Cast, load_cast
from rollout.collect import TrajectoryCollectEngine
from rollout.environments import ToolEnvironment
from rollout.episode import Job
from rollout.rewards import answer
from rollout.scripted import ScriptedEngine
from schemas.data import Task
from schemas.messages import Message, ToolCall
from schemas.trajectory import Trajectory

TASK = Task("t", "6*7=?", "42")


def finish(*before: tuple[str, dict[str, Any]], **arguments: Any) -> Message:
    calls = [*before, ("finish", arguments)]
    return Message("assistant", tool_calls=tuple(ToolCall(n, a, id=f"call_{i}") for i, (n, a) in enumerate(calls)))


def play(*turns: Message, form: str = "ours", world: type[ToolEnvironment] | None = None, **changes: Any) -> Trajectory:
    run = config(environment={"tools": ["calculator", "finish"]} | changes, rollout={"max_length": 4096})
    built = load_cast(run.environment, ".")
    cast = Cast(built.config, built.agent, world or built.environment, built.tools, built.score)
    chat, said = chat_format(TOKENIZERS[form], cast.tool_specs), iter(turns)

    def script(stream: Sequence[int], seed: int, version: int) -> list[int]:
        return chat.assistant(next(said))

    made = TrajectoryCollectEngine(
        ScriptedEngine(script, version=0), chat, cast, run, run="r", seed=7, worker="w", temperature=1.0
    )
    return asyncio.run(made.collect(Job(0, 0, 0, TASK)))


@pytest.mark.parametrize("form", TOKENIZERS)
@pytest.mark.parametrize(("given", "reward"), [("42", 1.0), (" 42 ", 1.0), ("41", 0.0)])
def test_its_answer_is_the_final_one(form: str, given: str, reward: float) -> None:
    row = play(finish(answer=given), form=form)
    assert (row.status, row.reward, len(row.turns)) == ("succeeded", reward, 1)
    assert row.mask[-1]


@pytest.mark.parametrize("form", TOKENIZERS)
def test_it_needs_no_answer(form: str) -> None:
    row = play(finish(), form=form)
    assert (row.status, row.reward, len(row.turns)) == ("succeeded", 0.0, 1)
    assert json.loads(row.messages)[-1]["tool_calls"][0]["function"] == {"name": "finish", "arguments": {}}


def test_other_calls_of_its_turn_are_run() -> None:
    seen: list[list[Message]] = []

    class Noting(ToolEnvironment):
        async def step(self, action: Any) -> Any:
            result = await super().step(action)
            seen.append(list(result.messages))
            return result

    row = play(finish(("calculator", {"expression": "6*7"}), answer="42"), world=Noting)
    assert (row.status, row.reward) == ("succeeded", 1.0)
    assert [m.content for m in seen[0]] == ["42", "The task is ended."]


def test_a_wrong_call_of_it_ends_nothing() -> None:
    row = play(finish(answer="42", sure=True), finish(answer="42"), form="qwen2_5")
    assert (row.status, row.reward, len(row.turns)) == ("succeeded", 1.0, 2)


def test_a_plain_answer_still_ends_the_episode() -> None:
    row = play(Message("assistant", "42"))
    assert (row.status, row.reward, len(row.turns)) == ("succeeded", 1.0, 1)


def test_the_final_answer_of_a_conversation() -> None:
    assert answer([Message("user", "?"), finish(("calculator", {}), answer=" 1 ")]) == "1"
    assert answer([finish(answer="1"), Message("tool", "2")]) == answer([]) == ""
    assert answer([Message("assistant", "1", (ToolCall("calculator", {}),))]) == ""
