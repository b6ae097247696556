"""Book-keeping of the JAX engine's cache rows: who holds which, what is in it, who may have it next.

A new session starts from a copy of the longest prefix of its stream that some other row holds or is about to hold, so
the samples of a group fill in their prompt once. Only what the policy in use wrote from the first token on is copied.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rollout.engine import Finish, Request

SHARED = 8
"""A prefix that is shorter is not worth a copy."""

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
    clean: bool = False
    """Whether the policy in use wrote all of `cached`."""
    source: "Source | None" = None
    """Where the start of `pending` will be copied from."""
    epoch: int = 0
    """Counts how often something else was put in the place of what was cached."""


@dataclass(frozen=True)
class Source:
    """The first `length` tokens of another slot, as long as that holds the stream that it held then."""

    slot: Slot
    epoch: int
    length: int


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
        request, prompt = job.request, list(job.request.token_ids[:-1])
        if slot.session != request.session:
            self._by_session.pop(slot.session, None)
            self._by_session[request.session] = slot
            slot.session = request.session
            keep = _common(slot.cached, prompt) if slot.clean else 0
        else:
            keep = _common(slot.cached, prompt)
        slot.epoch += keep < len(slot.cached)
        slot.clean |= not keep
        slot.cached, slot.pending = prompt[:keep], prompt[keep:]
        slot.source = self._source(slot, prompt)
        job.budget = min(request.sampling.max_tokens, context - len(request.token_ids))
        slot.job = job
        self._touch(slot)

    def _source(self, slot: Slot, prompt: list[int]) -> Source | None:
        """The slot that holds, or will hold, most of the prompt, if that is well more than `slot` has itself."""
        least, length, found = len(slot.cached) + SHARED, 0, slot
        for other in self.slots if slot.clean and least <= len(prompt) else []:
            if other is slot or not other.clean or other.source is not None:  # who waits may wait for this one
                continue
            stream = other.cached + other.pending
            if stream[:least] == prompt[:least] and (common := _common(stream, prompt)) > length:
                length, found = common, other
        return Source(found, found.epoch, length) if length else None

    def copies(self, most: int) -> list[tuple[int, int]]:
        """Up to `most` pairs of rows, from and to, to be copied now; the slots are taken for filled from here on."""
        pairs = []
        for slot in self.slots:
            source = slot.source
            if source is None or not slot.pending or len(pairs) == most:
                continue
            held = len(source.slot.cached)
            if source.slot.epoch == source.epoch and held < source.length and source.slot.pending:
                continue
            slot.source = None
            length = min(source.length, held) if source.slot.epoch == source.epoch else 0
            if length > len(slot.cached):
                prompt = slot.cached + slot.pending
                slot.cached, slot.pending = prompt[:length], prompt[length:]
                pairs.append((source.slot.index, slot.index))
        return pairs

    def free(self, slot: Slot) -> None:
        """Its request is over; the session keeps the row until someone else needs it."""
        slot.job, slot.pending, slot.source = None, [], None
        self._touch(slot)

    def new_policy(self, *, recompute: bool) -> None:
        """Another policy writes from here on. With `recompute`, it also writes again what running streams have."""
        for slot in self.slots:
            slot.clean, slot.source = False, None
            if recompute:
                slot.pending = slot.cached + slot.pending if slot.job is not None else []
                slot.cached, slot.clean = [], True
                slot.epoch += 1

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
        """Slots with prompt tokens left that nobody else is filling in for them, the oldest request first."""
        return sorted((s for s in self.slots if s.pending and s.source is None), key=lambda s: s.used)

    def jobs(self) -> list[Job]:
        return [s.job for s in self.slots if s.job is not None]

    def _touch(self, slot: Slot) -> None:
        self._uses += 1
        slot.used = self._uses


def _common(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix."""
    least, most = 0, min(len(a), len(b))
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if a[least:middle] == b[least:middle] else (least, middle - 1)
    return least
