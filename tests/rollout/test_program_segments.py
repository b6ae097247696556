"""In every chat format, what a program's segments train is byte for byte what was fed and sampled, each token once."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chats import TOKENIZERS
from support.programs import SPEC
from support.protocol import trajectory

from models.chat import ChatFormat
from models.tokenizer import Tokenizer
from rollout.engine import Completion, Request
from rollout.formats import ChatFormats
from rollout.program_line import Limits, Line
from rollout.program_requests import Asked, Refused
from rollout.scripted import ScriptedEngine
from rollout.segments import Joined, key
from schemas.messages import Message, ToolCall, ToolSpec
from trainer.batch import lay_out
from trainer.packing import padded

LENGTH = 20_000
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TOOLS = st.sampled_from([(), (SPEC,), (replace(SPEC, name="other"), SPEC)])


@dataclass
class Engine(ScriptedEngine):
    """Says the turns that it is given, and keeps what it was asked by session, the newest last."""

    turns: list[tuple[list[int], str]] = field(default_factory=list)
    streams: dict[str, list[tuple[tuple[int, ...], list[int]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(lambda *_: [], version=0)

    async def generate(self, request: Request) -> Completion:
        ids, finish = self.turns.pop(0)
        self.streams[request.session] = [*self.streams.pop(request.session, []), (request.token_ids, ids)]
        return Completion(tuple(ids), (-1.0,) * len(ids), (0,) * len(ids), finish, 0.0, 0.0)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Point:
    """Where a conversation has come to."""

    chat: ChatFormat
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]
    ids: tuple[int, ...] = ()


@st.composite
def sampled(draw: st.DrawFn, tokenizer: Tokenizer, chat: ChatFormat) -> tuple[list[int], str]:
    """A turn: any ids, a call, or text; ended by a stop token, or cut off."""
    kind = draw(st.sampled_from(["any", "call", "text", "text"]))
    if kind == "any":
        ids = draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=8))
    elif kind == "call":
        call = ToolCall(SPEC.name, {"expression": draw(st.sampled_from(["1+1", "x"]))})
        ids = chat.assistant(Message("assistant", draw(TEXT), (call,) * draw(st.integers(1, 2))))
    else:
        ids = tokenizer.encode(draw(TEXT | st.sampled_from(["a", "a ", "<tool_call>{"])))
    ids = [i for i in ids if i not in chat.stop_ids]
    if ids and draw(st.booleans()):
        return ids, draw(st.sampled_from(["length", "stop"]))
    return [*ids, draw(st.sampled_from(chat.stop_ids))], "stop"


@st.composite
def asked(draw: st.DrawFn, formats: ChatFormats, points: Sequence[Point]) -> Point:
    """A new conversation, one that goes on from any point with what clients do to texts, or one that is rewritten."""
    said = st.lists(st.builds(Message, st.sampled_from(["user", "tool"]), TEXT), min_size=1, max_size=2)
    kind = draw(st.sampled_from(["new", "on", "on", "on", "rewritten", "answered"])) if points else "new"
    if kind == "new":
        tools = draw(TOOLS)
        return Point(formats.of(tools), tools, (Message("user", draw(TEXT)),))
    point = draw(st.sampled_from([*points[-2:], *points]))
    before = tuple(
        replace(
            m, content=m.content.strip(), tool_calls=tuple(replace(c, id="mine") for c in m.tool_calls), thinking=""
        )
        if m.role == "assistant" and draw(st.booleans())
        else m
        for m in point.messages
    )
    if kind == "rewritten":
        before = (Message("user", draw(TEXT)), *before[1:])
    other = (Message("assistant", draw(TEXT)), Message("user", draw(TEXT))) if kind == "answered" else ()
    return Point(point.chat, point.tools, (*before, *draw(said), *other))


def starts(wanted: Point, points: Sequence[Point]) -> list[tuple[int, ...]]:
    """The streams that the answer may continue: behind a point that says the most of it, or anew."""
    keys = [key(m) for m in wanted.messages]
    fitting = [
        p
        for p in points
        if p.chat.digest == wanted.chat.digest and [key(m) for m in p.messages] == keys[: len(p.messages)]
    ]
    most = max((len(p.messages) for p in fitting), default=0)
    if not most:
        return [tuple(wanted.chat.prompt(wanted.messages, wanted.tools))]
    more = wanted.chat.continuation(wanted.messages[most:])
    closing = wanted.chat.stop_ids
    closed = [p.ids if p.ids[-1] in closing else (*p.ids, closing[0]) for p in fitting if len(p.messages) == most]
    return [(*ids, *more) for ids in closed]


async def ask(line: Line, wanted: Point) -> Message | None:
    """What the model says; None where the format refuses the conversation."""
    try:
        told = await line.answer(
            Asked("policy", wanted.messages, wanted.tools, bool(wanted.tools), {}, False, False, False)
        )
    except Refused as refusal:
        assert refusal.code == "invalid_value"
        return None
    return told.message


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_each_segment_is_what_was_fed_and_sampled(tokenizer: Tokenizer, data: st.DataObject) -> None:
    asyncio.run(play(tokenizer, data))


async def play(tokenizer: Tokenizer, data: st.DataObject) -> None:
    formats, engine = ChatFormats(tokenizer), Engine()
    line = Line("e", engine, formats, Limits("policy", 99, LENGTH, LENGTH, 1.0, 1.0, 0, ()), lambda n: n)
    points: list[Point] = []
    for _ in range(data.draw(st.integers(1, 6))):
        wanted = data.draw(asked(formats, points))
        turn = data.draw(sampled(tokenizer, wanted.chat))
        engine.turns = [turn]
        said = await ask(line, wanted)
        if said is None:
            continue
        stream, ids = list(engine.streams.values())[-1][-1]
        assert stream in starts(wanted, points), "a request must see all that came before, as it was"
        points.append(replace(wanted, messages=(*wanted.messages, said), ids=(*stream, *ids)))
    check(line.segments.joined(), engine)


def check(joined: Joined, engine: Engine) -> None:
    """Each segment is one session of the engine, extended by every request; what it sampled is trained, once."""
    stream = joined.stream
    if not stream.tokens:
        return
    bounds = [*joined.starts, len(stream.tokens)]
    row = trajectory(
        0, 0, tokens=tuple(stream.tokens), mask=tuple(stream.mask), logprobs=tuple(stream.logprobs),
        segment_starts=joined.starts, turns=tuple(joined.turns),
    )  # fmt: skip
    (part,) = lay_out([row], [1.0], padded(1, LENGTH))
    batch, spans = part.batch, iter(joined.turns)
    assert len(bounds) - 1 == len(engine.streams)
    for number, (start, end) in enumerate(pairwise(bounds), 1):
        pairs = list(engine.streams.values())[number - 1]
        assert stream.tokens[start:end] == [*pairs[-1][0], *pairs[-1][1]]
        mask = np.zeros(end - start)
        for fed, ids in pairs:
            assert tuple(stream.tokens[start : start + len(fed)]) == fed
            mask[len(fed) : len(fed) + len(ids)] = 1
            turn = next(spans)
            assert list(row.tokens[turn.start : turn.end]) == ids
        assert batch.mask[0, start:end].tolist() == mask.tolist()
        assert batch.tokens[0, start:end].tobytes() == np.asarray(stream.tokens[start:end], np.int32).tobytes()
        assert (batch.segments[0, start:end] == number).all()
        assert batch.positions[0, start:end].tolist() == list(range(end - start))
    assert sum(stream.mask) == sum(len(ids) for pairs in engine.streams.values() for _, ids in pairs)
