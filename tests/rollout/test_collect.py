"""Single episodes: the stream that results, and what each kind of failure costs."""

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rollouts import ASSISTANT, CALL, END, TOKENIZER, TOOL, USER, config, give_up, solve

from models.chat import chat_format
from rollout.agents import Action, ConversationAgentBase
from rollout.cast import Cast, load_cast
from rollout.collect import TrajectoryCollectEngine
from rollout.engine import Completion, Request
from rollout.environments import BaseTaskEnv, StepResult, ToolEnvironment
from rollout.episode import Job
from rollout.scripted import ScriptedEngine
from schemas import seeds
from schemas.config import Run
from schemas.data import Task
from schemas.messages import Message
from schemas.trajectory import Trajectory

TASK = Task("t", "12*11=?", "132")


def play(script: Any = solve, *, job: Job | None = None, cast: Cast | None = None, **changes: Any) -> Trajectory:
    """One episode of TASK; `script` is a function or an engine, `changes` go to sections of the configuration."""
    return asyncio.run(collect(config(**changes), script, job or Job(3, 1, 0, TASK), cast))


async def collect(run: Run, script: Any, job: Job, cast: Cast | None = None) -> Trajectory:
    cast = cast or load_cast(run.environment, ".")
    engine = ScriptedEngine(script, version=0) if callable(script) else script
    chat = chat_format(TOKENIZER, cast.tool_specs)
    made = TrajectoryCollectEngine(engine, chat, cast, run, run="r", seed=7, worker="w", temperature=1.0)
    return await made.collect(job)


def in_world(world: type[BaseTaskEnv], script: Any = solve, /, **changes: Any) -> Trajectory:
    """One episode in a world of the test's own."""
    built = load_cast(config(**changes).environment, ".")
    cast = Cast(built.config, built.agent, world, built.tools, built.score)
    return play(script, cast=cast, **changes)


def test_an_episode_with_a_tool() -> None:
    row = play()
    prompt, call = [USER, *b"12*11=?", END, ASSISTANT], [CALL, *b"12*11", END]
    answer, final = [TOOL, *b"132", END, ASSISTANT], [*b"132", END]
    assert row.tokens == (*prompt, *call, *answer, *final)
    assert row.mask == (*[False] * len(prompt), *[True] * len(call), *[False] * len(answer), *[True] * len(final))
    assert [(t.start, t.end, t.reward) for t in row.turns] == [(10, 17, 0.0), (23, 27, 1.0)]
    assert (row.status, row.reward, row.components) == ("succeeded", 1.0, (("exact_match", 1.0),))
    assert (row.id, row.group, row.sample, row.attempt) == ("3-1-0", 3, 1, 0)
    assert row.seed == seeds.request(7, 3, 1, 0, 0)
    assert [m["role"] for m in json.loads(row.messages)] == ["user", "assistant", "tool", "assistant"]
    assert json.loads(row.sampling)["temperature"] == 1.0


def test_each_turn_has_a_seed_of_its_own() -> None:
    seen: list[int] = []

    def noting(stream: Sequence[int], seed: int, version: int) -> list[int]:
        seen.append(seed)
        return solve(stream, seed, version)

    play(noting, job=Job(5, 2, 4, TASK))
    assert seen == [seeds.request(7, 5, 2, 4, turn) for turn in (0, 1)]


def test_versions_and_logprobs_are_kept_per_token() -> None:
    class Updating(ScriptedEngine):
        """Answers `ab<|end|>`; the policy changes after the first token of the first turn."""

        async def generate(self, request: Request) -> Completion:
            tokens = (CALL, ord("1"), END) if CALL not in request.token_ids else (*b"ab", END)
            versions = (4, 5, 5) if CALL not in request.token_ids else (5, 5, 6)
            return Completion(tokens, (-0.5, -1.0, -0.25), versions, "stop", 0.5, 1.5)

    row = asyncio.run(collect(config(), Updating(solve), Job(0, 0, 0, TASK)))
    first, second = (t.start for t in row.turns)
    assert (row.version_starts, row.versions) == ((first, first + 1, second + 2), (4, 5, 6))
    assert (row.oldest_version, row.newest_version) == (4, 6)
    assert [p for p, m in zip(row.logprobs, row.mask, strict=True) if m] == [-0.5, -1.0, -0.25] * 2
    assert (row.generate_seconds, row.queue_seconds) == (3.0, 1.0)


def test_a_turn_that_a_stop_string_ended_is_closed_for_the_model() -> None:
    """As a stop token would have: what nobody sampled is not trained."""

    def script(stream: Sequence[int], seed: int, version: int) -> list[int]:
        return [*b"so so"] if stream.count(ASSISTANT) == 1 else [*b"132", END]

    class Asking(ToolEnvironment):
        def step(self, action: Action) -> StepResult:  # type: ignore[override]
            return StepResult([Message("user", "and?")], done=action.text == "132")

    run = config(rollout={"stop": ["so s", "nothing"]})
    built = load_cast(run.environment, ".")
    cast = Cast(built.config, built.agent, Asking, built.tools, built.score)
    engine = ScriptedEngine(script, version=0, decode=TOKENIZER.decode)
    row = asyncio.run(collect(run, engine, Job(0, 0, 0, TASK), cast))
    first, second = row.turns
    assert row.tokens[first.start : second.start] == (*b"so s", END, USER, *b"and?", END, ASSISTANT)
    assert sum(row.mask) == len(b"so s") + len(b"132") + 1
    assert (row.status, row.reward) == ("succeeded", 1.0)
    said = json.loads(row.sampling)
    assert (said["top_p"], said["top_k"], said["stop"]) == (1.0, 0, ["so s", "nothing"])


def test_giving_up_is_an_answer() -> None:
    row = play(give_up)
    assert (row.status, row.reward, row.failed, len(row.turns)) == ("succeeded", 0.0, False, 1)


def test_a_malformed_call_is_answered_to_the_model() -> None:
    def script(stream: Sequence[int], seed: int, version: int) -> list[int]:
        return [CALL, END] if TOOL not in stream else [*b"132", END]

    row = play(script)
    said = json.loads(row.messages)
    assert said[2]["role"] == "tool"
    assert said[2]["content"] == "Error: The call of calculator has no argument."
    assert (row.status, row.reward) == ("succeeded", 1.0)


def test_limits_end_an_episode_that_is_still_trained() -> None:
    def endless(stream: Sequence[int], seed: int, version: int) -> list[int]:
        return [CALL, *b"1+1", END]

    def rambling(stream: Sequence[int], seed: int, version: int) -> list[int]:
        return [*b"132" * 99]

    turns = play(endless, environment={"max_turns": 3})
    assert (turns.status, len(turns.turns), turns.reward, turns.failed) == ("max_turns", 3, 0.0, False)
    assert turns.mask[-1]
    long = play(rambling, rollout={"max_tokens_per_turn": 3})
    assert (long.status, sum(long.mask), long.reward, long.failed) == ("max_tokens", 3, 0.0, False)
    full = play(rambling, rollout={"max_length": 14})
    assert (full.status, len(full.tokens), full.failed) == ("max_context", 14, False)
    no_room_to_answer = play(solve, rollout={"max_length": 22})
    assert (no_room_to_answer.status, len(no_room_to_answer.tokens)) == ("max_context", 17)
    too_long = play(solve, rollout={"max_length": 10})
    assert (too_long.status, too_long.failed) == ("max_context", True)
    assert too_long.detail == "the prompt has 10 tokens, rollout.max_length is 10"


def test_a_turn_that_fills_the_context_ran_out_of_context() -> None:
    """Whichever limit the engine names when both are met."""
    row = play(lambda *_: [*b"132" * 99], rollout={"max_tokens_per_turn": 4, "max_length": 14})
    assert (row.status, len(row.tokens)) == ("max_context", 14)


class Slow(ToolEnvironment):
    async def step(self, action: Action) -> StepResult:
        await asyncio.sleep(0.2)
        return await super().step(action)


@pytest.mark.parametrize(("limit", "turns"), [(0.1, 1), (0.3, 2)])
def test_the_time_of_all_tools_together_is_a_budget(limit: float, turns: int) -> None:
    row = in_world(Slow, lambda *_: [CALL, *b"1+1", END], environment={"tool_seconds": limit, "max_turns": 9})
    assert (row.status, len(row.turns), row.failed) == ("max_tool_seconds", turns, False)
    assert row.tool_seconds >= limit


def test_within_its_time_an_episode_is_scored_as_ever() -> None:
    row = in_world(Slow, environment={"tool_seconds": 60.0})
    assert (row.status, row.reward) == ("succeeded", 1.0)


def test_a_model_agent_answers_in_text() -> None:
    row = play(lambda *_: [*b"132", END], environment={"environment": "TaskEnvironment", "agent": "ModelAgent"})
    assert (row.status, row.reward, len(row.turns)) == ("succeeded", 1.0, 1)


# -- worlds that fail ----------------------------------------------------------------------------------------


class Raising(ToolEnvironment):
    def step(self, action: Action) -> StepResult:  # type: ignore[override]
        raise KeyError("lost")


class Hanging(ToolEnvironment):
    def step(self, action: Action) -> StepResult:  # type: ignore[override]
        time.sleep(3600)
        return StepResult()


class HangingAsync(ToolEnvironment):
    async def reset(self) -> list[Message]:
        await asyncio.Event().wait()
        return []


class Flooding(ToolEnvironment):
    async def step(self, action: Action) -> StepResult:
        return StepResult([Message("tool", "x" * 10_000)])


class Nonsense(ToolEnvironment):
    async def step(self, action: Action) -> StepResult:
        return None  # type: ignore[return-value]


class NonsenseMessages(ToolEnvironment):
    async def reset(self) -> list[Message]:
        return "what is 2+2?"  # type: ignore[return-value]


class NonsenseDone(ToolEnvironment):
    async def step(self, action: Action) -> StepResult:
        return StepResult(done="yes")  # type: ignore[arg-type]


class NotANumber(ToolEnvironment):
    def reward(self, messages: Sequence[Message]) -> float:  # type: ignore[override]
        return float("nan")


class NoTotal(ToolEnvironment):
    def reward(self, messages: Sequence[Message]) -> dict[str, float]:  # type: ignore[override]
        return {"style": 1.0}


class Exiting(ToolEnvironment):
    def reward(self, messages: Sequence[Message]) -> float:  # type: ignore[override]
        raise SystemExit(3)


class Unmakeable(ToolEnvironment):
    def __init__(self, task: Task, **others: Any) -> None:
        raise OSError("no container")


class BadClose(ToolEnvironment):
    def close(self) -> None:  # type: ignore[override]
        raise OSError("still busy")


@pytest.mark.parametrize(
    ("environment", "status", "detail"),
    [
        (Raising, "environment_error", "step raised KeyError: 'lost'"),
        (Hanging, "environment_timeout", "step took longer than 0.2 s"),
        (HangingAsync, "environment_timeout", "reset took longer than 0.2 s"),
        (Flooding, "flooded", "step returned 10000 characters, environment.max_observation is 8192"),
        (Nonsense, "environment_error", "step returned NoneType, not a StepResult"),
        (NonsenseMessages, "environment_error", "reset returned str, not a list of Messages"),
        (NonsenseDone, "environment_error", "step's done is str, not a bool"),
        (NotANumber, "environment_error", "exact_match returned nan, not a finite number"),
        (NoTotal, "environment_error", "exact_match returned parts without `reward`, their total"),
        (Exiting, "environment_error", "reward raised RuntimeError: SystemExit: 3"),
        (Unmakeable, "environment_error", "the environment's constructor raised OSError: no container"),
        (BadClose, "environment_error", "close raised OSError: still busy"),
    ],
)
def test_a_failing_world_ends_its_episode_with_status_and_cause(
    environment: type[BaseTaskEnv], status: str, detail: str
) -> None:
    row = in_world(environment, environment={"step_seconds": 0.2, "reward_seconds": 0.2})
    assert (row.status, row.detail, row.failed) == (status, detail, True)
    assert len(row.turns) <= 2


def test_a_hanging_reward_and_a_whole_episode_have_deadlines() -> None:
    class Slow(ToolEnvironment):
        def reward(self, messages: Sequence[Message]) -> float:  # type: ignore[override]
            time.sleep(3600)
            return 1.0

    row = in_world(Slow, environment={"reward_seconds": 0.1})
    assert (row.status, row.detail) == ("environment_timeout", "reward took longer than 0.1 s")
    stuck = asyncio.run(
        collect(
            config(rollout={"episode_seconds": 0.1}), ScriptedEngine(solve, version=0, seconds=60), Job(0, 0, 0, TASK)
        )
    )
    assert (stuck.status, stuck.failed) == ("timeout", True)
    assert stuck.detail == "the episode took longer than rollout.episode_seconds = 0.1"


def test_scoring_does_not_run_out_of_the_time_for_acting() -> None:
    """Else whoever acted until the last moment would fail while it is scored (PrimeIntellect-ai/verifiers#1245)."""

    class Thorough(ToolEnvironment):
        async def reward(self, messages: Sequence[Message]) -> float:  # type: ignore[override]
            await asyncio.sleep(3.0)
            return 1.0

    row = in_world(Thorough, rollout={"episode_seconds": 2.0}, environment={"reward_seconds": 60.0})
    assert (row.status, row.reward) == ("succeeded", 1.0)


def test_an_engine_that_fails_costs_its_episode() -> None:
    def broken(stream: Sequence[int], seed: int, version: int) -> list[int]:
        raise MemoryError("cache")

    row = play(broken)
    assert (row.status, row.detail) == ("engine_error", "the engine raised MemoryError: cache")
    odd = play(lambda *_: ([1, END], [float("nan"), 0.0]))
    assert (odd.status, odd.detail) == (
        "engine_error",
        "the engine raised ValueError: the engine returned a log-prob that is not finite",
    )


def test_the_environment_is_closed_whatever_happens() -> None:
    closed: list[str] = []

    def world(name: str, step: Callable[[ToolEnvironment, Action], Any]) -> type[BaseTaskEnv]:
        class World(ToolEnvironment):
            def step(self, action: Action) -> StepResult:  # type: ignore[override]
                return step(self, action)

            async def close(self) -> None:
                closed.append(name)

        return World

    def fail(*_: Any) -> None:
        raise ValueError

    in_world(world("done", lambda *_: StepResult(done=True)))
    in_world(world("failed", fail))
    assert closed == ["done", "failed"]


async def test_a_cancelled_episode_closes_its_environment_and_frees_its_session() -> None:
    closed, released = asyncio.Event(), []

    class World(ToolEnvironment):
        async def close(self) -> None:
            closed.set()

    class Slow(ScriptedEngine):
        def release(self, session: str) -> None:
            released.append(session)

    built = load_cast(config().environment, ".")
    cast = Cast(built.config, built.agent, World, built.tools, built.score)
    task = asyncio.ensure_future(collect(config(), Slow(solve, version=0, seconds=60), Job(0, 0, 0, TASK), cast))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(closed.wait(), 5)
    assert released == ["w/0-0-0"]


def test_step_rewards_add_up_and_plain_functions_may_block() -> None:
    class Game(BaseTaskEnv):
        turn = 0

        def step(self, action: Action) -> StepResult:  # type: ignore[override]
            self.turn += 1
            return StepResult([Message("tool", f"{self.turn}")], reward=0.25, done=self.turn == 3)

        def reward(self, messages: Sequence[Message]) -> dict[str, float]:  # type: ignore[override]
            return {"reward": 0.5, "success": 1.0}

    row = in_world(Game, lambda *_: [*b"go", END])
    assert [t.reward for t in row.turns] == [0.25, 0.25, 0.75]
    assert row.reward == 1.25
    assert row.components == (("success", 1.0), ("steps", 0.75))


# -- the stream ------------------------------------------------------------------------------------------------

Turns = st.lists(st.lists(st.integers(0, 262), min_size=1, max_size=12), min_size=4, max_size=4)


@settings(max_examples=60, deadline=None)
@given(Turns, st.text(max_size=12))
def test_the_stream_only_grows_and_sampled_ids_stay_as_they_were(turns: list[list[int]], answer: str) -> None:
    requests: list[tuple[int, ...]] = []

    def script(stream: Sequence[int], seed: int, version: int) -> list[int]:
        requests.append(tuple(stream))
        return [*(t for t in turns[len(requests) - 1] if t != END), END]

    class Echo(BaseTaskEnv):
        async def step(self, action: Action) -> StepResult:
            return StepResult([Message("tool", answer)])

    row = in_world(Echo, script)
    for before, after in itertools.pairwise(requests):
        assert after[: len(before)] == before
    sampled = [row.tokens[t.start : t.end] for t in row.turns]
    assert sampled == [(*(t for t in turn if t != END), END) for turn in turns[: len(requests)]]
    assert [t for t, m in zip(row.tokens, row.mask, strict=True) if m] == [t for turn in sampled for t in turn]
    assert (row.status, len(row.turns)) == ("max_turns", 4)


def test_agents_are_hooks_too() -> None:
    class Blocking(ConversationAgentBase):
        def update_from_model(self, turn: Any) -> Action:  # type: ignore[override]
            time.sleep(3600)
            return Action(turn.message)

    built = load_cast(config().environment, ".")
    cast = Cast(built.config, Blocking, built.environment, built.tools, built.score)
    row = play(cast=cast, environment={"step_seconds": 0.1})
    assert (row.status, row.detail) == ("environment_timeout", "the agent's turn took longer than 0.1 s")


def test_the_environment_that_users_copy_works() -> None:
    folder = Path(__file__).parents[2] / "examples" / "calculator"
    run = config(environment={"environment": "environment:CalculatorEnvironment"})
    row = asyncio.run(collect(run, solve, Job(0, 0, 0, TASK), load_cast(run.environment, str(folder))))
    assert row.reward == 1.0
    assert row.components == (("success", 1.0), ("used_tool", 1.0))
