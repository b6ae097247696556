"""What a program's requests come to as token streams: segments, of which each is only ever extended.

A request repeats the whole conversation as text. It goes on behind the last sampled turn that it repeats, with the ids
that were fed and sampled there; only what is new is tokenized. Where others have gone on from that turn already, or an
open request is doing so, it opens a segment of its own, which begins with the same ids, none of them trained a second
time. So does a conversation that repeats no sampled turn, as after a rewritten context. An assistant's message that was
not sampled here is context. Nothing is kept of a request until its answer is complete.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from models.chat import ChatFormat
from rollout.engine import Completion
from rollout.stream import TokenStream
from schemas.messages import Message
from schemas.trajectory import Turn


@dataclass(frozen=True)
class Mark:
    """The place behind a sampled turn: so many of the segment's messages, so many of its tokens."""

    messages: int
    tokens: int


@dataclass
class Segment:
    """One stream under one chat format."""

    number: int
    """In the order of opening; names the engine's session."""
    digest: str
    """The chat format's."""
    stream: TokenStream = field(default_factory=TokenStream)
    messages: list[Message] = field(default_factory=list)
    """What was said up to the last mark."""
    keys: list[Any] = field(default_factory=list)
    """What `messages` are recognised by."""
    marks: list[Mark] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    """What the request of each turn said of sampling."""
    taken: bool = False
    """Whether an open request extends it."""
    order: int = 0
    """Grows with every turn of the episode: that of the last one here."""
    answered: float = 0.0


@dataclass(frozen=True)
class Opening:
    """Where a request's answer goes, and what is fed before it."""

    segment: Segment
    fed: list[int]
    messages: tuple[Message, ...]
    """The whole conversation as the request has it."""
    asked: float

    @property
    def ids(self) -> tuple[int, ...]:
        """The stream that the answer continues."""
        return (*self.segment.stream.tokens, *self.fed)


@dataclass
class Joined:
    """Segments as one stream."""

    stream: TokenStream = field(default_factory=TokenStream)
    starts: tuple[int, ...] = (0,)
    """Where each of them starts."""
    turns: list[Turn] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    """What the request of each turn said of sampling."""


class Segments:
    """The segments of one episode."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._segments: list[Segment] = []
        self._opened = self._turns = 0

    @property
    def tokens(self) -> int:
        """Tokens of all of them."""
        return sum(len(s.stream.tokens) for s in self._segments)

    @property
    def turns(self) -> int:
        """Sampled turns of all of them."""
        return self._turns

    @property
    def last(self) -> Segment | None:
        """The one with the newest turn; its messages are the conversation."""
        return max(self._segments, key=lambda s: s.order, default=None)

    def open(self, chat: ChatFormat, asked: Sequence[Message], write: Callable[[], list[int]]) -> Opening:
        """Where the answer to a conversation goes; nothing is changed. `write` makes the ids of a new conversation."""
        now, keys = self._clock(), [key(m) for m in asked]
        found = self._find(chat.digest, asked, keys)
        if found is None:
            return Opening(Segment(self._opened, chat.digest), write(), tuple(asked), now)
        segment, mark = found
        closing = [] if segment.stream.tokens[mark.tokens - 1] in chat.stop_ids else [chat.stop_ids[0]]
        fed = [*closing, *chat.continuation(asked[mark.messages :])]
        if _free(segment, mark):
            return Opening(segment, fed, tuple(asked), now)
        return Opening(
            Segment(self._opened, chat.digest), [*segment.stream.tokens[: mark.tokens], *fed], tuple(asked), now
        )

    def _find(self, digest: str, asked: Sequence[Message], keys: list[Any]) -> tuple[Segment, Mark] | None:
        """The furthest mark whose messages the conversation repeats. Of equal ones that with the same ids of calls,
        then one that can be extended, then the newest."""
        fitting = [
            (segment, mark)
            for segment in self._segments
            if segment.digest == digest
            for mark in segment.marks
            if mark.messages < len(keys) and segment.keys[: mark.messages] == keys[: mark.messages]
        ]

        def rank(found: tuple[Segment, Mark]) -> tuple[Any, ...]:
            segment, mark = found
            same = call_ids(segment.messages[: mark.messages]) == call_ids(asked[: mark.messages])
            return mark.messages, same, _free(segment, mark), segment.order

        return max(fitting, key=rank, default=None)

    def take(self, opening: Opening) -> None:
        """A request is open there: whoever asks meanwhile branches off."""
        opening.segment.taken = True
        self._opened = max(self._opened, opening.segment.number + 1)

    def give_up(self, opening: Opening) -> None:
        """The request is over without an answer."""
        opening.segment.taken = False

    def keep(self, opening: Opening, completion: Completion, said: Message, asked: dict[str, Any]) -> None:
        """Append what was fed and sampled; `said` is what the program was told. ValueError for a broken completion."""
        segment, now = opening.segment, self._clock()
        if segment.turns:
            segment.turns[-1] = replace(segment.turns[-1], tool_seconds=opening.asked - segment.answered)
        else:
            self._segments.append(segment)
        segment.stream.feed(opening.fed)
        span = segment.stream.sampled(completion)
        segment.turns.append(Turn(*span, 0.0, completion.generate_seconds, completion.queue_seconds, 0.0))
        segment.asked.append(asked)
        segment.messages = [*opening.messages, said]
        segment.keys = [key(m) for m in segment.messages]
        segment.marks.append(Mark(len(segment.messages), span[1]))
        self._turns += 1
        segment.order, segment.answered, segment.taken = self._turns, now, False

    def joined(self) -> "Joined":
        """All segments behind each other; that with the newest turn is the last."""
        out, starts = Joined(), list[int]()
        for segment in sorted((s for s in self._segments if s.turns), key=lambda s: s.order):
            start = len(out.stream.tokens)
            starts.append(start)
            out.turns += [replace(t, start=t.start + start, end=t.end + start) for t in segment.turns]
            out.asked += segment.asked
            out.stream.append(segment.stream)
        out.starts = tuple(starts) or (0,)
        return out


def key(message: Message) -> Any:
    """What a message is recognised by when a program sends it back: clients trim an assistant's text and rename ids."""
    if message.role != "assistant":
        return message.role, message.content
    calls = tuple((c.name, json.dumps(c.arguments, sort_keys=True)) for c in message.tool_calls)
    return message.role, message.content.strip(), calls


def call_ids(messages: Sequence[Message]) -> list[str]:
    """The ids of all calls in them."""
    return [c.id for m in messages for c in m.tool_calls]


def _free(segment: Segment, mark: Mark) -> bool:
    return mark.tokens == len(segment.stream.tokens) and not segment.taken
