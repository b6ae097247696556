"""Book-keeping of the JAX engine's cache rows: who holds which, what is in it, who may have it next."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rollout.engine import Finish, Request

Settle = Callable[[Any, BaseException | None], None]
"""Answers one who waits, from any thread: with a result, or an error."""


@dataclass
class Job:
    """A request on its way through the engine."""

    request: Request
    settle: Settle
    queued: float
    started: float = 0.0
    cancelled: bool = False
    budget: int = 0
    """Tokens that may be sampled in all."""
    stopped: bool = False
    """Whether its text holds a stop string."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def last(self) -> int:
        """The stream's last token."""
        return self.tokens[-1] if self.tokens else self.request.token_ids[-1]

    def finish(self, context: int) -> Finish | None:
        """Why the request is done, or None while it is not."""
        if self.stopped or (self.tokens and self.tokens[-1] in self.request.sampling.stop_ids):
            return "stop"
        if len(self.tokens) < self.budget:
            return None
        return "context" if len(self.request.token_ids) + len(self.tokens) >= context else "length"


@dataclass
class Slot:
    """One cache row."""

    index: int
    session: str = ""
    cached: list[int] = field(default_factory=list)
    """The tokens whose keys and values the row holds."""
    pending: list[int] = field(default_factory=list)
    """Prompt tokens still to be pre-filled."""
    job: Job | None = None
    used: int = 0
    """When it was last given a request or freed from one, as a count."""


class SlotTable:
    """Gives rows to requests: their session's own, a free one, or the one that has waited longest on a tool."""

    def __init__(self, count: int) -> None:
        self.slots = [Slot(i) for i in range(count)]
        self._by_session: dict[str, Slot] = {}
        self._uses = 0

    def admit(self, queue: deque[Job], context: int) -> list[Job]:
        """Move requests from the queue to slots while there are slots to be had; returns those requests."""
        admitted: list[Job] = []
        behind: list[Job] = []
        while queue and any(s.job is None for s in self.slots):
            job = queue.popleft()
            if job.cancelled:
                continue
            slot = self._slot_for(job.request.session)
            if slot is None:
                behind.append(job)
                continue
            self._give(slot, job, context)
            admitted.append(job)
        queue.extendleft(reversed(behind))
        return admitted

    def _slot_for(self, session: str) -> Slot | None:
        """None while an earlier request of the same session is running."""
        own = self._by_session.get(session)
        if own is not None:
            return own if own.job is None else None
        idle = [s for s in self.slots if s.job is None]
        return min(idle, key=lambda s: (bool(s.session), s.used))

    def _give(self, slot: Slot, job: Job, context: int) -> None:
        request = job.request
        if slot.session != request.session:
            # What another episode left is not read, even where it agrees: an older policy may have written it.
            self._by_session.pop(slot.session, None)
            self._by_session[request.session] = slot
            slot.session, slot.cached = request.session, []
        prompt = list(request.token_ids[:-1])
        keep = _common(slot.cached, prompt)
        slot.cached, slot.pending = prompt[:keep], prompt[keep:]
        job.budget = min(request.sampling.max_tokens, context - len(request.token_ids))
        slot.job = job
        self._touch(slot)

    def free(self, slot: Slot) -> None:
        """Its request is over; the session keeps the row until someone else needs it."""
        slot.job, slot.pending = None, []
        self._touch(slot)

    def free_cancelled(self) -> None:
        """Take slots back from requests that nobody waits for."""
        for slot in self.slots:
            if slot.job is not None and slot.job.cancelled:
                self.free(slot)

    def release(self, session: str) -> None:
        """The session has ended. A row that it is decoding in stays taken until that request is over."""
        slot = self._by_session.pop(session, None)
        if slot is not None:
            slot.session = ""

    def decoding(self) -> list[tuple[Slot, Job]]:
        """Slots whose prompt is in the cache."""
        return [(s, s.job) for s in self.slots if s.job is not None and not s.pending]

    def filling(self) -> list[Slot]:
        """Slots with prompt tokens left, the oldest request first."""
        return sorted((s for s in self.slots if s.pending), key=lambda s: s.used)

    def jobs(self) -> list[Job]:
        return [s.job for s in self.slots if s.job is not None]

    def _touch(self, slot: Slot) -> None:
        self._uses += 1
        slot.used = self._uses


def _common(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix."""
    if a == b[: len(a)]:
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
