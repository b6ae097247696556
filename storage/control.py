"""The small objects by which workers and the learner meet: window, claims, registrations, leases.

Each has one rule of exclusion: create-if-absent or compare-and-swap, as `docs/design.md` lists them.
"""

import time
from collections.abc import Callable

from schemas import keys
from schemas.manifest import Claim, Window, WorkerState
from storage.documents import read_generation
from storage.objects import GenerationMismatch, ObjectExists, ObjectStore


def read_window(store: ObjectStore, base: str) -> tuple[Window, int] | None:
    """The window and its generation, or None before the learner has opened it."""
    key = keys.window(base)
    return read_generation(store, Window, key)


def read_claim(store: ObjectStore, base: str, group: int) -> tuple[Claim, int] | None:
    """Who holds a group, and the claim's generation."""
    key = keys.claim(base, group)
    return read_generation(store, Claim, key)


def create_claim(
    store: ObjectStore,
    base: str,
    group: int,
    worker: str,
    window_version: int,
    wall: Callable[[], float] = time.time,
) -> bool:
    """Claim a group that nobody has, at the time that `wall` shows (seconds); False if somebody was first."""
    claim = Claim(
        group=group,
        owner=worker,
        owners=(worker,),
        takeovers=0,
        first_claimed=wall(),
        limit_version=window_version,
    )
    try:
        store.create(keys.claim(base, group), claim.to_bytes())
    except ObjectExists:
        return False
    return True


def take_over(store: ObjectStore, base: str, claim: Claim, generation: int, worker: str) -> Claim | None:
    """Take a dead owner's claim, keeping its history; None if somebody was first."""
    taken = claim.model_copy(
        update={"owner": worker, "owners": (*claim.owners, worker), "takeovers": claim.takeovers + 1}
    )
    try:
        store.swap(keys.claim(base, claim.group), taken.to_bytes(), generation)
    except GenerationMismatch:
        return None
    return taken


def register_worker(store: ObjectStore, base: str, *, worker: str, host: str, pid: int) -> WorkerState:
    """Register a new worker process under the next free number. Registrations are never deleted."""
    number = 0
    while True:
        state = WorkerState(
            worker=worker,
            number=number,
            host=host,
            pid=pid,
            state="running",
            beat=0,
            version=-1,
            next_seq=0,
            counters={},
        )
        try:
            store.create(keys.worker(base, number), state.to_bytes())
            return state
        except ObjectExists:
            number += 1


def read_worker(store: ObjectStore, base: str, number: int) -> tuple[WorkerState, int] | None:
    """A worker's last heartbeat and its generation."""
    key = keys.worker(base, number)
    return read_generation(store, WorkerState, key)


def beat(store: ObjectStore, base: str, state: WorkerState) -> None:
    """Write a heartbeat; only the worker itself does."""
    store.put(keys.worker(base, state.number), state.to_bytes())


class LeaseWatch:
    """Tells whether something still beats: its generation has changed within `seconds` of the observer's own clock.

    Wall clocks of two machines are never compared. What was never seen before counts as alive.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._seen: dict[str, tuple[int, float]] = {}

    def alive(self, name: str, generation: int) -> bool:
        """Note that `name` stands at `generation` now; False once it has stood there for the lease time."""
        now = self._clock()
        last = self._seen.get(name)
        if last is None or last[0] != generation:
            self._seen[name] = (generation, now)
            return True
        return now - last[1] < self._seconds
