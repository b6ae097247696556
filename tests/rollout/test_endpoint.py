"""The endpoint as OpenAI's own client meets it: answers, streams, refusals, and requests that nobody waits for."""

import asyncio
import contextlib
import json
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.programs import TOOLS, episode, use_the_tool, world
from support.rollouts import CALL, END, TOKENIZER

from rollout.engine import Completion, Request
from rollout.formats import ChatFormats
from rollout.program_line import OPEN, REFUSED
from rollout.program_requests import Refused, read_request
from rollout.programs import Address
from rollout.scripted import ScriptedEngine

PICTURE = {"type": "image_url", "image_url": {"url": "x"}}
ASK: Any = [{"role": "user", "content": "12*11=?"}]


async def visit(look: Any, script: Any = lambda *_: [*b"132", END], **changes: Any) -> Any:
    """Run `look(client, address)` as an episode's program; it must not fail."""
    row = await episode(world(look), script, **changes)
    assert row.status in ("succeeded", "max_turns"), row.detail
    return row


async def test_an_answer_has_what_clients_read() -> None:
    async def look(client: Any, address: Address) -> None:
        assert [m.id async for m in client.models.list()] == [address.model]
        told = await client.chat.completions.create(model=address.model, messages=ASK, logprobs=True, seed=3, user="me")
        choice = told.choices[0]
        assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "132", "stop")
        assert (told.usage.prompt_tokens, told.usage.completion_tokens, told.usage.total_tokens) == (10, 4, 14)
        assert [(t.token, t.logprob) for t in choice.logprobs.content] == [("1", 0), ("3", 0), ("2", 0), ("<|end|>", 0)]
        parts = [{"type": "text", "text": "12*"}, {"type": "text", "text": "11=?"}]
        await client.chat.completions.create(model=address.model, messages=[{"role": "user", "content": parts}])

    row = await visit(look)
    assert row.tokens[:10] == row.tokens[14:24]


async def test_calls_come_as_calls_where_they_may_and_as_text_where_not() -> None:
    async def look(client: Any, address: Address) -> None:
        def ask(**asked: Any) -> Any:
            return client.chat.completions.create(model=address.model, messages=ASK, **asked)

        told = (await ask(tools=TOOLS, tool_choice="auto")).choices[0]
        (call,) = told.message.tool_calls
        assert (told.finish_reason, told.message.content) == ("tool_calls", None)
        assert (call.function.name, call.function.arguments) == ("calculator", '{"expression": "1+1"}')
        for asked in ({"tools": TOOLS, "tool_choice": "none"}, {}):
            told = (await ask(**asked)).choices[0]
            assert (told.finish_reason, told.message.content, told.message.tool_calls) == ("stop", "<|call|>1+1", None)

    await visit(look, lambda *_: [CALL, *b"1+1", END])


async def test_a_malformed_call_is_text_that_can_be_sent_back() -> None:
    async def look(client: Any, address: Address) -> None:
        told = await client.chat.completions.create(model=address.model, messages=ASK, tools=TOOLS)
        said = told.choices[0].message
        assert (said.content, said.tool_calls) == ("<|call|>", None)
        again = [*ASK, said.model_dump(exclude_none=True), {"role": "user", "content": "?"}]
        await client.chat.completions.create(model=address.model, messages=again, tools=TOOLS)

    row = await visit(look, lambda *_: [CALL, END])
    assert row.segment_starts == (0,)


async def test_stop_strings_end_a_turn_and_are_not_told() -> None:
    async def look(client: Any, address: Address) -> None:
        told = await client.chat.completions.create(model=address.model, messages=ASK, stop=[" so", "3"])
        said = told.choices[0].message
        assert (told.choices[0].finish_reason, said.content) == ("stop", "1")
        again = [*ASK, said.model_dump(exclude_none=True), {"role": "user", "content": "?"}]
        await client.chat.completions.create(model=address.model, messages=again)

    row = await visit(look)
    assert (row.segment_starts, row.tokens[row.turns[0].start : row.turns[0].end]) == ((0,), tuple(b"13"))


async def test_a_stream_adds_up_to_the_answer() -> None:
    async def look(client: Any, address: Address) -> None:
        asked: Any = {"model": address.model, "messages": ASK, "tools": TOOLS, "stream": True}
        stream = await client.chat.completions.create(**asked, stream_options={"include_usage": True})
        chunks = [c async for c in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        calls = [call for c in chunks for d in c.choices for call in d.delta.tool_calls or ()]
        assert [(c.index, c.function.name, c.function.arguments) for c in calls] == [
            (0, "calculator", '{"expression": "1+1"}')
        ]
        assert [d.finish_reason for c in chunks for d in c.choices if d.finish_reason] == ["tool_calls"]
        assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 15)
        async with client.chat.completions.stream(model=address.model, messages=ASK) as one:
            final = await one.get_final_completion()
        assert final.choices[0].message.content == "<|call|>1+1"

    await visit(look, lambda *_: [CALL, *b"1+1", END])


async def test_a_client_may_leave_in_the_middle_of_a_stream() -> None:
    """The turn was sampled and stays; who asks the same again is answered anew."""

    async def look(client: Any, address: Address) -> None:
        asked: Any = {"model": address.model, "messages": ASK}
        stream = await client.chat.completions.create(**asked, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await client.chat.completions.create(**asked)

    row = await visit(look)
    assert (len(row.turns), row.segment_starts) == (2, (0, 14))


async def test_what_is_asked_after_the_episode_s_end_is_turned_away() -> None:
    late: list[Any] = []

    async def look(client: Any, address: Address) -> None:
        await client.chat.completions.create(model=address.model, messages=ASK)
        late.append(address)

    async def ask() -> None:
        async with httpx.AsyncClient() as http:
            body = {"model": "policy", "messages": ASK}
            found = await http.post(f"{late[0].base_url}/chat/completions", json=body)
            assert (found.status_code, found.json()["error"]["code"]) == (410, "episode_over")

    row = await visit(look, afterwards=ask)
    assert (row.status, len(row.turns)) == ("succeeded", 1)


async def test_who_asks_on_and_on_for_what_can_t_be_served_is_stopped() -> None:
    async def look(client: Any, address: Address) -> None:
        async with httpx.AsyncClient() as http:
            while True:
                await http.post(f"{address.base_url}/chat/completions", content=b"?")

    row = await episode(world(look))
    assert row.status == "environment_error"
    assert row.detail == f"{REFUSED} requests of the program in a row were refused, the last one: the body is not JSON"


async def test_a_body_beyond_all_context_is_turned_away() -> None:
    async def look(client: Any, address: Address) -> None:
        with pytest.raises(openai.APIStatusError) as refused:
            await client.chat.completions.create(
                model=address.model, messages=[{"role": "user", "content": "x" * 500_000}]
            )
        assert refused.value.status_code == 413
        await client.chat.completions.create(model=address.model, messages=ASK)

    await visit(look)


STRING = st.text(st.characters(), max_size=4) | st.sampled_from(["user", "function"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | STRING,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRING, inner, max_size=3),
    max_leaves=6,
)
CALLED = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "c", "arguments": "{}"}}]}
WHOLE: Any = {
    "model": "policy", "messages": [*ASK, CALLED, *ASK], "tools": TOOLS, "tool_choice": "auto",
    "temperature": 0.5, "top_p": 0.5, "max_tokens": 3, "stop": ["x"], "stream": True, "seed": 3, "n": 1,
    "stream_options": {"include_usage": True},
}  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_a_body_says_is_read_or_refused(data: st.DataObject) -> None:
    """Any value in any place of a request, lone surrogates and infinite numbers among them."""
    body = json.loads(json.dumps(WHOLE))
    place: Any = body
    while True:
        name = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        inner = place[name]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        place = inner
    place[name] = data.draw(JSON)
    with contextlib.suppress(Refused):
        asked = read_request(body)
        chat = ChatFormats(TOKENIZER).of(asked.tools)
        chat.prompt(asked.messages, asked.tools)
        chat.parse([CALL, *b"c:{}", END])


@pytest.mark.parametrize(
    ("asked", "code", "param"),
    [
        ({"n": 2}, "unsupported_parameter", "n"),
        ({"response_format": {"type": "json_object"}}, "unsupported_parameter", "response_format"),
        ({"tool_choice": "required", "tools": TOOLS}, "unsupported_parameter", "tool_choice"),
        ({"logit_bias": {"1": 2}}, "unsupported_parameter", "logit_bias"),
        ({"parallel_tool_calls": False}, "unsupported_parameter", "parallel_tool_calls"),
        ({"extra_body": {"min_p": 0.1}}, "unsupported_parameter", "min_p"),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "assistant", "content": "so"}]}, "invalid_value", "messages"),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, "invalid_value", None),
    ],
)  # fmt: skip
async def test_what_can_t_be_served_is_refused_by_name(asked: dict[str, Any], code: str, param: str | None) -> None:
    async def look(client: Any, address: Address) -> None:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**{"model": address.model, "messages": ASK, **asked})
        assert refused.value.code == code
        assert param is None or refused.value.param == param
        await client.chat.completions.create(model=address.model, messages=ASK, n=1, frequency_penalty=0)

    row = await visit(look)
    assert len(row.turns) == 1


async def test_other_refusals_have_openai_s_shape_too() -> None:
    addresses: list[Address] = []

    async def look(client: Any, address: Address) -> None:
        addresses.append(address)
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="gpt-9", messages=ASK)
        assert unknown.value.code == "model_not_found"
        root, _, _ = address.base_url.partition("/e/")
        async with httpx.AsyncClient() as http:
            for method, url, status, code in (
                ("POST", f"{address.base_url}/chat/completions", 400, "invalid_json"),
                ("POST", f"{root}/e/{'x' * 32}/v1/chat/completions", 404, "episode_not_found"),
                ("GET", f"{root}/e/{'x' * 32}/v1/models", 404, "episode_not_found"),
                ("GET", f"{root}/v1/models", 404, "invalid_request"),
                ("GET", f"{address.base_url}/chat/completions", 405, "invalid_request"),
            ):
                found = await http.request(method, url, content=b"{oops")
                assert (found.status_code, found.json()["error"]["code"]) == (status, code)
        await client.chat.completions.create(model=address.model, messages=ASK)

    await visit(look)
    assert addresses[0].base_url.startswith("http://127.0.0.1:")


async def test_an_episode_that_is_over_answers_no_more() -> None:
    ended: list[Any] = []

    async def look(client: Any, address: Address) -> None:
        await client.chat.completions.create(model=address.model, messages=ASK)
        try:
            await client.chat.completions.create(model=address.model, messages=ASK)
        except openai.APIStatusError as error:
            ended.append((error.status_code, error.code))
            raise

    row = await visit(look, environment={"tools": [], "max_turns": 1})
    assert row.status == "max_turns"
    assert ended in ([], [(410, "episode_over")])  # the program may be ended before it has read the answer


class Slow(ScriptedEngine):
    """Answers the second request of a conversation only when it is let to, and counts who waits."""

    def __init__(self) -> None:
        super().__init__(lambda *_: [*b"132", END], version=0)
        self.waiting, self.given_up, self.let = 0, 0, asyncio.Event()

    async def generate(self, request: Request) -> Completion:
        self.waiting += 1
        try:
            await self.let.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        finally:
            self.waiting -= 1
        return await super().generate(request)


async def until(done: Any) -> None:
    async with asyncio.timeout(60):
        while not done():
            await asyncio.sleep(0.01)


async def test_who_hangs_up_frees_the_engine_and_leaves_no_trace() -> None:
    engine = Slow()

    async def look(client: Any, address: Address) -> None:
        asking = asyncio.ensure_future(client.chat.completions.create(model=address.model, messages=ASK))
        await until(lambda: engine.waiting == 1)
        asking.cancel()
        await until(lambda: engine.given_up == 1)
        engine.let.set()
        await client.chat.completions.create(model=address.model, messages=ASK)

    row = await visit(look, engine)
    assert (len(row.turns), row.segment_starts, engine.waiting) == (1, (0,), 0)


async def test_too_many_open_requests_are_put_off_and_the_episode_s_end_gives_them_up() -> None:
    engine = Slow()

    async def look(client: Any, address: Address) -> str:
        async def ask() -> None:
            await client.chat.completions.create(model=address.model, messages=ASK, max_tokens=4)

        open_ones = [asyncio.ensure_future(ask()) for _ in range(OPEN)]
        await until(lambda: engine.waiting == OPEN)
        with pytest.raises(openai.RateLimitError):
            await ask()
        engine.let.set()
        await asyncio.gather(*open_ones)
        engine.let.clear()
        left = asyncio.ensure_future(ask())
        await until(lambda: engine.waiting == 1)
        left.add_done_callback(lambda task: task.exception())
        return "132"

    row = await visit(look, engine, environment={"tools": [], "max_turns": 99}, rollout={"max_length": 1000})
    assert (len(row.turns), len(row.segment_starts), row.reward) == (OPEN, OPEN, 1.0)
    await until(lambda: engine.waiting == 0)


async def test_open_requests_can_t_take_more_room_than_there_is() -> None:
    async def look(client: Any, address: Address) -> None:
        asks = [client.chat.completions.create(model=address.model, messages=ASK) for _ in range(6)]
        told = await asyncio.gather(*asks, return_exceptions=True)
        assert any(isinstance(t, openai.BadRequestError) for t in told)

    row = await visit(look, environment={"tools": [], "max_turns": 99}, rollout={"max_length": 50})
    assert len(row.tokens) <= 50


async def test_a_client_may_time_out_and_try_again() -> None:
    """OpenAI's client does so by itself."""
    engine = Slow()

    async def look(client: Any, address: Address) -> str | None:
        patience = 0.2
        while not engine.given_up:  # on a busy machine a request may not even have come
            with pytest.raises(openai.APITimeoutError):
                hasty = client.with_options(timeout=patience)
                await hasty.chat.completions.create(model=address.model, messages=ASK)
            patience *= 2
            await until(lambda: not engine.waiting)
        engine.let.set()
        return await use_the_tool(client, address)

    row = await visit(look, engine)
    assert (row.reward, len(row.turns)) == (1.0, 1)
