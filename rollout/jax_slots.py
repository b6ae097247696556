"""Book-keeping of the JAX engine's cache rows: who holds which, what is in it, who may have it next."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from rollout.engine import Finish, Request


@dataclass
class Job:
    """A request on its way through the engine."""

    request: Request
    finish: Any
    """Called from the engine's thread with (result, error)."""
    queued: float
    started: float = 0.0
    cancelled: bool = False
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    budget: int = 0


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
    """When it was last given a request, as a count."""


class SlotTable:
    """Gives rows to requests: their session's own, a free one, or the one that has waited longest on a tool."""

    def __init__(self, count: int) -> None:
        self.slots = [Slot(i) for i in range(count)]
        self._by_session: dict[str, Slot] = {}
        self._uses = 0

    def admit(self, queue: "deque[Job]", context: int) -> list[Slot]:
        """Move requests from the queue to slots while there are slots to be had; returns those slots."""
        taken = []
        while queue:
            slot = self._for(queue[0].request.session)
            if slot is None:
                break
            job = queue.popleft()
            if not job.cancelled:
                self._give(slot, job, context)
                taken.append(slot)
        return taken

    def _for(self, session: str) -> Slot | None:
        own = self._by_session.get(session)
        if own is not None:
            return own if own.job is None else None
        idle = [s for s in self.slots if s.job is None]
        return min(idle, key=lambda s: (bool(s.session), s.used), default=None)

    def _give(self, slot: Slot, job: Job, context: int) -> None:
        request = job.request
        if slot.session != request.session:
            self._by_session.pop(slot.session, None)
            self._by_session[request.session] = slot
            slot.session, slot.cached = request.session, []
        prompt = list(request.token_ids[:-1])
        keep = _common(slot.cached, prompt)
        slot.cached, slot.pending = prompt[:keep], prompt[keep:]
        job.budget = min(request.sampling.max_tokens, context - len(request.token_ids))
        self._uses += 1
        slot.job, slot.used = job, self._uses

    def release(self, session: str) -> None:
        """Free the row of a session that has ended; one that is decoding is freed when its request ends."""
        slot = self._by_session.pop(session, None)
        if slot is not None:
            slot.session = ""

    def decoding(self) -> list[Slot]:
        """Slots whose prompt is in the cache."""
        return [s for s in self.slots if s.job is not None and not s.pending]

    def filling(self) -> list[Slot]:
        """Slots with prompt tokens left, the oldest request first."""
        return sorted((s for s in self.slots if s.job is not None and s.pending), key=lambda s: s.used)

    def free_cancelled(self) -> None:
        """Take slots back from requests that nobody waits for."""
        for slot in self.slots:
            if slot.job is not None and slot.job.cancelled:
                slot.job, slot.pending = None, []

    def jobs(self) -> list[Job]:
        return [s.job for s in self.slots if s.job is not None]


def finished(job: Job, context: int) -> Finish | None:
    """Why a request is done, or None while it is not."""
    if job.tokens and job.tokens[-1] in job.request.sampling.stop_ids:
        return "stop"
    if len(job.tokens) < job.budget:
        return None
    return "context" if len(job.request.token_ids) + len(job.tokens) >= context else "length"


def _common(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix."""
    if a == b[: len(a)]:
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
