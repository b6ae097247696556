"""Episodes that a program plays through the endpoint: what is recorded, and how each limit and failure ends them."""

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from support.programs import TASK, episode, use_the_tool, world
from support.rollouts import ASSISTANT, CALL, END, TOKENIZER, TOOL, USER, config

from rollout.cast import load_cast
from rollout.engine import Completion, EngineUnfit, Request
from rollout.episode import Job
from rollout.gold import Prompter
from rollout.programs import Address, CommandEnvironment, ProgramEnvironment
from rollout.scripted import ScriptedEngine
from schemas import seeds
from schemas.errors import RequestError


async def test_a_program_s_episode_is_that_of_an_agent_of_ours() -> None:
    row = await episode(world(use_the_tool))
    prompt, call = [USER, *b"12*11=?", END, ASSISTANT], [CALL, *b"12*11", END]
    answer, final = [TOOL, *b"132", END, ASSISTANT], [*b"132", END]
    assert row.tokens == (*prompt, *call, *answer, *final)
    assert row.mask == (*[False] * len(prompt), *[True] * len(call), *[False] * len(answer), *[True] * len(final))
    assert [(t.start, t.end, t.reward) for t in row.turns] == [(10, 17, 0.0), (23, 27, 1.0)]
    assert (row.status, row.reward, row.segment_starts) == ("succeeded", 1.0, (0,))
    assert [m["role"] for m in json.loads(row.messages)] == ["user", "assistant", "tool", "assistant"]
    assert "asked" not in json.loads(row.sampling)


async def test_versions_logprobs_and_seeds_are_those_of_each_request() -> None:
    seen: list[int] = []

    class Updating(ScriptedEngine):
        async def generate(self, request: Request) -> Completion:
            seen.append(request.seed)
            if CALL in request.token_ids:
                return Completion((*b"ab", END), (-0.5, -1.0, -0.25), (5, 5, 6), "stop", 0.5, 1.5)
            return Completion((CALL, ord("1"), END), (-0.5, -1.0, -0.25), (4, 5, 5), "stop", 0.5, 1.5)

    row = await episode(world(use_the_tool), Updating(lambda *_: []))
    first, second = (t.start for t in row.turns)
    assert (row.version_starts, row.versions) == ((first, first + 1, second + 2), (4, 5, 6))
    assert [p for p, m in zip(row.logprobs, row.mask, strict=True) if m] == [-0.5, -1.0, -0.25] * 2
    assert seen == [seeds.request(7, 3, 1, 0, turn) for turn in (0, 1)]
    assert (row.generate_seconds, row.queue_seconds) == (3.0, 1.0)


async def test_the_program_s_own_answer_is_scored_and_ends_the_conversation() -> None:
    async def improve(client: Any, address: Address) -> str:
        await use_the_tool(client, address, "1+1=?", temperature=0.5, stop=["x"])
        return "132"

    row = await episode(world(improve))
    assert (row.status, row.reward) == ("succeeded", 1.0)
    assert [m["content"] for m in json.loads(row.messages)][-2:] == ["2", "132"]
    assert json.loads(row.sampling)["asked"] == [{"temperature": 0.5, "stop": ["x"]}] * 2


async def test_a_rewritten_context_is_a_segment_and_only_the_last_is_the_conversation() -> None:
    async def twice(client: Any, address: Address) -> str | None:
        await use_the_tool(client, address, "1+1=?")
        return await use_the_tool(client, address)

    row = await episode(world(twice))
    assert (row.reward, len(row.segment_starts), len(row.turns)) == (1.0, 2, 4)
    assert json.loads(row.messages)[0]["content"] == TASK.prompt
    assert sum(row.mask) == sum(t.end - t.start for t in row.turns)


async def test_turns_and_context_are_limited_as_everywhere() -> None:
    async def for_ever(client: Any, address: Address) -> None:
        while True:
            await use_the_tool(client, address)

    row = await episode(world(for_ever), environment={"tools": [], "max_turns": 3})
    assert (row.status, len(row.turns), row.failed, row.reward) == ("max_turns", 3, False, 0.0)
    row = await episode(world(for_ever), environment={"tools": [], "max_turns": 99}, rollout={"max_length": 40})
    assert (row.status, row.failed, len(row.tokens) <= 40) == ("max_context", False, True)
    assert row.detail.endswith("rollout.max_length is 40")


async def test_a_program_that_makes_do_with_a_full_context_is_scored() -> None:
    async def fits(client: Any, address: Address) -> str:
        with pytest.raises(openai.BadRequestError, match=r"rollout\.max_length is 40") as refused:
            while True:
                await use_the_tool(client, address)
        assert refused.value.code == "context_length_exceeded"
        return TASK.answer

    row = await episode(world(fits), environment={"tools": [], "max_turns": 99}, rollout={"max_length": 40})
    assert (row.status, row.reward) == ("succeeded", 1.0)


async def test_a_turn_that_is_too_long_says_so_and_is_closed_for_the_next() -> None:
    async def cut(client: Any, address: Address) -> None:
        messages: list[Any] = [{"role": "user", "content": "?"}]
        first = await client.chat.completions.create(model=address.model, messages=messages, max_tokens=2)
        assert (first.choices[0].finish_reason, first.choices[0].message.content) == ("length", "ab")
        messages += [first.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "on"}]
        await client.chat.completions.create(model=address.model, messages=messages)

    row = await episode(world(cut), lambda *_: [*b"abcd", END])
    assert row.tokens == (USER, *b"?", END, ASSISTANT, *b"ab", END, USER, *b"on", END, ASSISTANT, *b"abcd", END)
    assert row.mask[4:7] == (True, True, False)


@pytest.mark.parametrize(
    ("failing", "status", "detail"),
    [
        (KeyError("lost"), "environment_error", "the program raised KeyError: 'lost'"),
        (SystemExit(3), "environment_error", "the program raised RuntimeError: SystemExit: 3"),
        (asyncio.CancelledError(), "environment_error", "the program was cancelled from within"),
        (7, "environment_error", "the program returned int, not its answer as text or None"),
        ("x" * 9000, "flooded", "the program returned 9000 characters, environment.max_observation is 8192"),
        (None, "environment_error", "the program ended without an answer of the model"),
    ],
)
async def test_a_failing_program_ends_its_episode_with_status_and_cause(
    failing: Any, status: str, detail: str, caplog: pytest.LogCaptureFixture
) -> None:
    class World(ProgramEnvironment):
        async def act(self, address: Address) -> str | None:
            if isinstance(failing, BaseException):
                raise failing
            return failing

    row = await episode(World)
    assert (row.status, row.detail, row.failed) == (status, detail, True)
    assert not caplog.records, "nothing failed while nobody waited for it"


async def test_a_program_that_fails_after_some_turns_keeps_them() -> None:
    async def fail(client: Any, address: Address) -> None:
        await use_the_tool(client, address)
        raise OSError("no disk")

    row = await episode(world(fail))
    assert (row.status, row.failed, len(row.turns)) == ("environment_error", True, 2)


async def test_an_engine_that_fails_costs_its_episode() -> None:
    def broken(*_: Any) -> list[int]:
        raise MemoryError("cache")

    row = await episode(world(use_the_tool), broken)
    assert (row.status, row.detail) == ("engine_error", "the engine raised MemoryError: cache")


async def test_an_engine_that_can_t_go_on_is_no_episode_s_own_failure() -> None:
    def broken(*_: Any) -> list[int]:
        raise EngineUnfit("no server is left")

    with pytest.raises(EngineUnfit, match="no server is left"):
        await episode(world(use_the_tool), broken)


async def test_a_program_that_blocks_runs_in_a_thread_and_has_the_episode_s_deadline() -> None:
    class World(ProgramEnvironment):
        def act(self, address: Address) -> str | None:  # type: ignore[override]
            client = openai.OpenAI(base_url=address.base_url, api_key=address.api_key)
            told = client.chat.completions.create(model=address.model, messages=[{"role": "user", "content": "?"}])
            return told.choices[0].message.content if hang is False else time.sleep(3600)

    hang = False
    row = await episode(World, lambda *_: [*b"132", END])
    assert (row.status, row.reward) == ("succeeded", 1.0)
    hang = True
    row = await episode(World, lambda *_: [*b"132", END], rollout={"episode_seconds": 1.0})
    assert (row.status, row.failed) == ("timeout", True)


async def test_many_episodes_at_once_do_not_mix() -> None:
    async def own(client: Any, address: Address) -> str | None:
        await asyncio.sleep(0)
        return await use_the_tool(client, address)

    rows = await asyncio.gather(*[episode(world(own)) for _ in range(8)])
    assert {r.tokens for r in rows} == {rows[0].tokens} and {r.reward for r in rows} == {1.0}


AGENT = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
assert "answer" not in task
body = {"model": os.environ["OPENAI_MODEL"], "messages": [{"role": "user", "content": task["prompt"]}]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode())
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""


def command(folder: Path, program: str, **settings: Any) -> type[CommandEnvironment]:
    """The environment of a command, in a file of its own as users have it."""
    (folder / "command_agent.py").write_text(program)
    (folder / "environment.py").write_text(
        "import sys\nfrom rollout.programs import CommandEnvironment\n\n"
        "class Command(CommandEnvironment):\n    command = (sys.executable, 'command_agent.py')\n"
    )
    named = {"tools": [], "environment": "environment:Command", **settings}
    cast = load_cast(config(environment=named).environment, str(folder))
    assert issubclass(cast.environment, CommandEnvironment)
    return cast.environment


async def test_a_command_is_told_its_task_and_where_the_model_answers(tmp_path: Path) -> None:
    row = await episode(command(tmp_path, AGENT), lambda *_: [*b"132", END])
    assert (row.status, row.detail, row.reward) == ("succeeded", "", 1.0)


def test_a_program_writes_its_own_system_message(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"environment\.system_prompt is for agents of ours"):
        command(tmp_path, AGENT, system_prompt="Be kind.")


async def test_a_command_that_floods_or_hangs_behind_its_end_is_cut_off(tmp_path: Path) -> None:
    ask = AGENT.replace("print(", "told = (")
    row = await episode(command(tmp_path, ask + "\nwhile True: print('x' * 9999)"), lambda *_: [*b"132", END])
    assert row.status == "flooded"
    stay = ask + "\nimport subprocess\nsubprocess.Popen(['sleep', '20'], start_new_session=True)\nprint(told)"
    row = await episode(command(tmp_path, stay), lambda *_: [*b"132", END])
    assert (row.status, row.reward) == ("succeeded", 1.0)


async def test_gold_and_wrong_answers_go_through_the_program(tmp_path: Path) -> None:
    command(tmp_path, AGENT)
    run = config(environment={"tools": [], "environment": "environment:Command"})
    prompter = Prompter(run, str(tmp_path), TOKENIZER)
    assert prompter.cast.opening(TASK) is None, "a program says what it opens with"
    job = Job(0, 0, 0, TASK)
    gold = await prompter.gold(TASK, "tasks")
    right, wrong = await asyncio.gather(prompter.say(job, gold), prompter.say_wrong(job, gold))
    await prompter.close()
    assert [(r.status, r.reward) for r in (right, wrong)] == [("succeeded", 1.0), ("succeeded", 0.0)]


async def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    row = await episode(command(tmp_path, "raise SystemExit('no such thing')"))
    assert row.status == "environment_error"
    assert row.detail.endswith("ended with status 1: no such thing")


def alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def test_a_command_s_whole_session_ends_with_its_episode(tmp_path: Path) -> None:
    hang = (
        "import os, subprocess, sys, time\nchild = subprocess.Popen(['sleep', '3600'])\n"
        "open('pids.tmp', 'w').write(f'{os.getpid()} {child.pid}')\nos.rename('pids.tmp', 'pids')\ntime.sleep(3600)"
    )
    playing = asyncio.ensure_future(episode(command(tmp_path, hang)))
    async with asyncio.timeout(60):
        while not (tmp_path / "pids").exists():
            await asyncio.sleep(0.05)
    playing.cancel()
    await asyncio.wait({playing})
    pids: Sequence[int] = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    async with asyncio.timeout(60):
        while any(map(alive, pids)):
            await asyncio.sleep(0.05)
