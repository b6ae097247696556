"""One episode's line to the policy: a program's requests within the episode's limits, recorded as segments.

A request that doesn't fit is refused and the program may make do without; one that is over the number of turns ends the
episode. Open requests reserve the room that they may take; one that has to wait for room does.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from models.chat import ChatFormat
from models.chatml import split_thinking
from models.spans import written
from rollout.engine import Completion, Engine, EngineUnfit, Request, Sampling
from rollout.episode import EpisodeEnded
from rollout.formats import ChatFormats
from rollout.hooks import leave_behind, said
from rollout.program_answers import Answer, Told
from rollout.program_requests import Asked, Refused
from rollout.segments import Opening, Segments
from schemas.config import Run
from schemas.messages import Message
from schemas.trajectory import Status

OPEN = 16
"""Requests of one episode that may be open at once."""
REFUSED = 100
"""Refusals in a row that end an episode: a program that asks on and on would hold the worker up."""


@dataclass(frozen=True)
class Limits:
    """What holds for every request of an episode."""

    model: str
    """The name that the program must ask for."""
    max_turns: int
    max_length: int
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stop: tuple[str, ...]

    @classmethod
    def of(cls, config: Run, model: str, temperature: float) -> "Limits":
        rollout = config.rollout
        return cls(
            model, config.environment.max_turns, rollout.max_length, rollout.max_tokens_per_turn,
            temperature, rollout.top_p, rollout.top_k, rollout.stop,
        )  # fmt: skip


class Line:
    """Answers the requests of one episode until it is closed."""

    def __init__(
        self, name: str, engine: Engine, formats: ChatFormats, limits: Limits, seed: Callable[[int], int]
    ) -> None:
        """`name` is the episode's, for the engine's sessions; `seed` gives that of a numbered turn."""
        self._name, self._engine, self._formats, self.limits, self._seed = name, engine, formats, limits, seed
        self.segments = Segments()
        self.end: EpisodeEnded | None = None
        """Why the episode is over, where the line has ended it."""
        self.fatal: BaseException | None = None
        """A failure that is no episode's own: an engine that can't go on, or a bug of ours."""
        self.full = ""
        """Why the last request did not fit; "" where one has been answered since."""
        self.over = asyncio.Event()
        self._changed = asyncio.Event()
        self._open: set[int] = set()
        self._used: set[int] = set()
        self._reserved: dict[int, int] = {}
        self._sessions: set[str] = set()
        self._refused = 0

    def stop(self, end: EpisodeEnded | None = None, fatal: BaseException | None = None) -> None:
        """No request is answered any more; those that are open are given up."""
        self.end, self.fatal = self.end or end, self.fatal or fatal
        self.over.set()
        self._changed.set()

    def close(self) -> None:
        """Stop, and let the engine forget the episode."""
        self.stop()
        for session in self._sessions:
            self._engine.release(session)

    async def answer(self, asked: Asked) -> Answer:
        """The answer to a request; Refused where there is none. Cancelling leaves no trace of it."""
        self._check_open()
        try:
            answer = await self._admitted(asked)
        except Refused as refusal:
            self.refused(refusal)
            raise
        self._refused = 0
        return answer

    def refused(self, refusal: Refused) -> None:
        """Count a refusal of whatever kind."""
        self._refused += 1
        if self._refused >= REFUSED:
            detail = f"{REFUSED} requests of the program in a row were refused, the last one: {refusal}"
            self.stop(EpisodeEnded(Status.ENVIRONMENT_ERROR, detail))

    def _check_open(self) -> None:
        if self.over.is_set():
            raise Refused(410, "episode_over", "the episode is over: its model answers no more")

    async def _admitted(self, asked: Asked) -> Answer:
        if asked.model != self.limits.model:
            message = f"the model here is called `{self.limits.model}`"
            raise Refused(404, "model_not_found", message, "model")
        if len(self._open) >= OPEN:
            raise Refused(429, "too_many_open", f"{OPEN} requests of this episode are open: wait for one of them")
        chat = _fits("tools", lambda: self._formats.of(asked.tools))
        number = self._next_turn()
        self._open.add(number)
        try:
            opening, most = await self._room(number, chat, asked)
            try:
                return await self._sampled(number, chat, asked, opening, most)
            finally:
                self.segments.give_up(opening)
        finally:
            self._open.discard(number)
            self._reserved.pop(number, None)
            self._changed.set()

    def _next_turn(self) -> int:
        """The lowest number that no answered or open request has: what is given up is sampled alike again."""
        taken = self._used | self._open
        if len(taken) >= self.limits.max_turns:
            self.stop(EpisodeEnded(Status.MAX_TURNS))
            self._check_open()
        return next(n for n in range(len(taken) + 1) if n not in taken)

    async def _room(self, number: int, chat: ChatFormat, asked: Asked) -> tuple[Opening, int]:
        """Where the answer goes and how many tokens it may have, once there is room for it."""
        wanted = min(self.limits.max_tokens, asked.sampling.get("max_tokens", self.limits.max_tokens))
        while True:
            self._check_open()
            opening = _fits("messages", lambda: self._opening(chat, asked))
            room = self.limits.max_length - self.segments.tokens - len(opening.fed)
            free = room - sum(self._reserved.values())
            if free >= wanted or (free >= 1 and not self._reserved):
                most = min(wanted, free)
                self._reserved[number] = len(opening.fed) + most
                self.segments.take(opening)
                return opening, most
            if room < 1 or not self._reserved:
                raise self._no_room(len(opening.fed))
            self._changed.clear()
            await self._changed.wait()

    def _opening(self, chat: ChatFormat, asked: Asked) -> Opening:
        return self.segments.open(chat, asked.messages, lambda: chat.prompt(asked.messages, asked.tools))

    def _no_room(self, more: int) -> Refused:
        self.full = (
            f"the episode has {self.segments.tokens} tokens, a request has {more} more and leaves no room for an "
            f"answer: rollout.max_length is {self.limits.max_length}"
        )
        return Refused(400, "context_length_exceeded", self.full, "messages")

    async def _sampled(self, number: int, chat: ChatFormat, asked: Asked, opening: Opening, most: int) -> Answer:
        session = f"{self._name}/{opening.segment.number}"
        self._sessions.add(session)
        request = Request(session, opening.ids, self._sampling(chat, asked, most), self._seed(number))
        try:
            completion = await self._unless_over(self._engine.generate(request))
            message = told(completion, chat, self._formats, asked, number)
            self.segments.keep(opening, completion, message, asked.sampling)
        except Refused:
            raise
        except EngineUnfit as error:
            self.stop(fatal=error)
            raise Refused(500, "engine_error", "the engine can't go on") from error
        except Exception as error:
            self.stop(EpisodeEnded(Status.ENGINE_ERROR, f"the engine raised {type(error).__name__}: {said(error)}"))
            raise Refused(500, "engine_error", "the engine failed, and with it the episode") from error
        self._used.add(number)
        self.full = ""
        return Answer(
            id=f"chatcmpl-{self._name}-{number}",
            model=self.limits.model,
            message=message,
            finish=_finish(completion, message),
            prompt_tokens=len(request.token_ids),
            completion_tokens=len(completion.token_ids),
            tokens=tuple(
                (written([i], self._formats.tokenizer, chat), p)
                for i, p in zip(completion.token_ids, completion.logprobs, strict=True)
            ),
        )

    def _sampling(self, chat: ChatFormat, asked: Asked, most: int) -> Sampling:
        limits, said_so = self.limits, asked.sampling
        return Sampling(
            most,
            said_so.get("temperature", limits.temperature),
            chat.stop_ids,
            top_p=said_so.get("top_p", limits.top_p),
            top_k=limits.top_k,
            stop=(*limits.stop, *said_so.get("stop", ())),
        )

    async def _unless_over(self, generating: Any) -> Completion:
        """The completion; given up when the episode ends first."""
        sampling, over = asyncio.ensure_future(generating), asyncio.ensure_future(self.over.wait())
        try:
            await asyncio.wait({sampling, over}, return_when=asyncio.FIRST_COMPLETED)
            if not sampling.done():
                self._check_open()
            if sampling.cancelled():
                raise RuntimeError("CancelledError: it gave the request up")
            return sampling.result()
        finally:
            over.cancel()
            if not sampling.done():
                leave_behind(sampling)


def told(completion: Completion, chat: ChatFormat, formats: ChatFormats, asked: Asked, number: int) -> Message:
    """What a program is told that the model said: calls where it may and they can be read, else all its text."""
    ids = completion.token_ids
    turn = chat.parse(ids)
    message, ended = turn.message, bool(ids) and ids[-1] in chat.stop_ids
    if turn.error or (message.tool_calls and not asked.calls):
        text = written(ids[:-1] if ended else ids, formats.tokenizer, chat)
        message = replace(message, content=split_thinking(text)[1] if message.thinking else text, tool_calls=())
    calls = tuple(replace(c, id=f"call_{number}_{i}") for i, c in enumerate(message.tool_calls))
    return replace(message, content=before(message.content, asked.sampling.get("stop", ())), tool_calls=calls)


def before(text: str, stop: Any) -> str:
    """The text up to the first of these strings."""
    return text[: min((place for s in stop if (place := text.find(s)) >= 0), default=len(text))]


def _finish(completion: Completion, message: Message) -> Told:
    if completion.finish != "stop":
        return "length"
    return "tool_calls" if message.tool_calls else "stop"


def _fits(what: str, write: Callable[[], Any]) -> Any:
    """What a chat format makes of a request; what it can't take is the request's fault."""
    try:
        return write()
    except Refused:
        raise
    except Exception as error:
        raise Refused(400, "invalid_value", f"the chat format can't take them: {said(error)}", what) from error
