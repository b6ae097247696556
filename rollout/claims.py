"""Which groups this worker plays: the lowest free one below the window's limit, or one whose owner has died.

Claims are create-if-absent and takeovers compare-and-swap, so two workers never both win a group. A taker first reads
what all owners have sealed and plays only what is missing. A worker takes over from itself a group that stays open long
after it was played, if a shard of it can't be read back. A group whose owners died one after the other is a suspect: it
is played with nothing beside it, so that nobody else pays and the next death says whose it was. Blocking store calls:
use from a thread, one at a time.
"""

import time
from collections.abc import Callable, Set
from dataclasses import dataclass, field

from rollout.sealed import SealedSamples
from schemas.config import Run
from schemas.manifest import Claim, Window
from storage import control
from storage.objects import ObjectStore

SUSPECT_DEATHS = 2
"""A group that so many owners died with is played alone: one may have been killed from outside …"""
DEADLY_DEATHS = 3
"""… and with one more its task is what ends them."""


@dataclass(frozen=True)
class Assignment:
    """A group that this worker is to play."""

    group: int
    first_attempt: int
    """Each owner numbers its attempts from takeovers x attempts, so that no id is used twice."""
    samples: tuple[int, ...]
    """The samples that no owner before has settled."""
    deaths: int = field(default=0, compare=False)
    """How many owners died while they had it, rather than to leave."""

    @property
    def alone(self) -> bool:
        """Whether nothing may be played beside it."""
        return self.deaths >= SUSPECT_DEATHS

    @property
    def deadly(self) -> str:
        """That playing it ends the worker, in a sentence; empty if it does not."""
        return f"{self.deaths} workers in a row ended while they played it" if self.deaths >= DEADLY_DEATHS else ""


class ClaimBoard:
    """Claims groups of one RL stage for one worker."""

    def __init__(
        self,
        store: ObjectStore,
        base: str,
        worker: str,
        config: Run,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._base, self._worker = store, base, worker
        self._rollout, self._group_size = config.rollout, config.rl.group_size
        self._clock, self._wall = clock, wall
        self._leases = control.LeaseWatch(config.rollout.lease_seconds, clock)
        self._sealed = SealedSamples(store, base, config.rollout.attempts)
        self._numbers: dict[str, int] = {}
        self._taken: set[int] = set()
        self._mine: dict[int, float] = {}
        """Group → when it was last seen in play."""
        self._looked = float("-inf")
        self._orphans: list[tuple[Claim, int]] = []
        self._died: set[str] = set()
        """Workers that stopped beating without having left."""

    def next(self, window: Window, *, idle: bool = True) -> Assignment | None:
        """The next group to play, or None while there is none.

        `idle`: nothing is in play here and all is sealed. While a suspect waits for that, nothing else is begun.
        """
        self._forget(window)
        self._orphans = [o for o in self._orphans if self._may_take(o[0], window)]
        if any(self._suspect(claim) for claim, _ in self._orphans):
            self._orphans.sort(key=lambda orphan: not self._suspect(orphan[0]))
            return self._take_over(window) if idle else None
        return self._claim_free(window) or self._take_over(window)

    def _may_take(self, claim: Claim, window: Window) -> bool:
        return not has_ended(window, claim.group) and claim.takeovers < self._rollout.max_takeovers

    def _suspect(self, claim: Claim) -> bool:
        return self._deaths(claim.owners) >= SUSPECT_DEATHS

    def _deaths(self, owners: tuple[str, ...]) -> int:
        return sum(owner in self._died for owner in owners)

    def _forget(self, window: Window) -> None:
        self._taken = {g for g in self._taken if g >= window.low}
        self._mine = {g: seen for g, seen in self._mine.items() if g >= window.low}

    def _claim_free(self, window: Window) -> Assignment | None:
        for group in open_groups(window):
            if group in self._taken or group in self._mine:
                continue
            if control.create_claim(self._store, self._base, group, self._worker, window.version, self._wall):
                self._mine[group] = self._clock()
                return Assignment(group, 0, tuple(range(self._group_size)))
            self._taken.add(group)
        return None

    def watch(self, window: Window, playing: Set[int]) -> None:
        """Look for claims of dead owners; a few times a lease, or leases would seem to be renewed in between.

        `playing` are the groups of which this worker has jobs.
        """
        now = self._clock()
        self._mine |= dict.fromkeys(playing & self._mine.keys(), now)
        if now - self._looked < self._rollout.lease_seconds / 4:
            return
        self._looked = now
        alive = self._alive()
        found = ((g, control.read_claim(self._store, self._base, g)) for g in open_groups(window) if g in self._taken)
        claims = [c for _, c in found if c is not None]
        self._orphans = [(c, generation) for c, generation in claims if not alive.get(c.owner, True)]
        self._orphans += [c for g in open_groups(window) if (c := self._lost(g)) is not None]

    def _lost(self, group: int) -> tuple[Claim, int] | None:
        """This worker's claim of an open group that it played long ago and can't read back whole."""
        patience = self._rollout.lease_seconds + self._rollout.seal_seconds
        if self._clock() - self._mine.get(group, float("inf")) < patience:
            return None
        found = control.read_claim(self._store, self._base, group)
        mine = found is not None and found[0].owner == self._worker
        return found if found and mine and self._missing(group, found[0].owners) else None

    def _missing(self, group: int, owners: tuple[str, ...]) -> tuple[int, ...]:
        settled = self._sealed.settled(group, owners)
        return tuple(s for s in range(self._group_size) if s not in settled)

    def _alive(self) -> dict[str, bool]:
        """Worker id → whether its heartbeat still moves. One that left is as dead as one that stands still."""
        number, alive = 0, {}
        while (found := control.read_worker(self._store, self._base, number)) is not None:
            state, generation = found
            moving = self._leases.alive(state.worker, generation)
            alive[state.worker] = moving and state.state == "running"
            if not moving and state.state == "running":
                self._died.add(state.worker)
            else:
                self._died.discard(state.worker)
            number += 1
        return alive

    def _take_over(self, window: Window) -> Assignment | None:
        while self._orphans:
            claim, generation = self._orphans.pop(0)
            if not self._may_take(claim, window):
                continue
            taken = control.take_over(self._store, self._base, claim, generation, self._worker)
            if taken is None:
                continue
            self._mine[taken.group] = self._clock()
            self._taken.discard(taken.group)
            missing = self._missing(taken.group, taken.owners[:-1])
            if missing:
                first = taken.takeovers * self._rollout.attempts
                return Assignment(taken.group, first, missing, self._deaths(taken.owners[:-1]))
        return None


def open_groups(window: Window) -> list[int]:
    """The groups below the limit that have not ended, lowest first."""
    ended = set(window.ended)
    return [g for g in range(window.low, window.limit) if g not in ended]


def has_ended(window: Window, group: int) -> bool:
    """Whether the ledger has ended a group."""
    return group < window.low or group in window.ended
