"""The open groups as the staleness policy sees them: whole, overdue, or still coming.

A group is overdue when its deadline has passed (counted from its first claim) or when it was taken over as often as it
may be and its owner is dead; then it trains its survivors, or ends as incomplete.
"""

import time
from collections.abc import Callable

from schemas.config import Run
from schemas.manifest import Claim
from storage.control import LeaseWatch, read_claim
from storage.objects import ObjectStore
from trainer.assembler import GroupAssembler
from trainer.progress import Progress
from trainer.staleness import Candidate
from trainer.tail import ShardTail


class ClaimWatch:
    """Watches the claims of groups that are not whole, a few times a lease."""

    def __init__(
        self,
        store: ObjectStore,
        base: str,
        config: Run,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._base, self._config = store, base, config
        self._clock, self._wall = clock, wall
        self._leases = LeaseWatch(config.rollout.lease_seconds, clock)
        self._alive: dict[str, bool] = {}
        self._claims: dict[int, Claim] = {}
        self._next = 0.0

    def refresh(self, groups: list[int], tail: ShardTail) -> None:
        """Read claims and heartbeats again when it is time to."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + self._config.rollout.lease_seconds / 4
        for worker in tail.refresh():
            beats = self._leases.alive(worker.id, worker.generation)
            self._alive[worker.id] = beats and worker.state.state == "running"
        found = {g: read_claim(self._store, self._base, g) for g in groups}
        self._claims = {g: c[0] for g, c in found.items() if c is not None}

    def overdue(self, group: int) -> str:
        """Why a group is given up before it is whole, or an empty string."""
        claim = self._claims.get(group)
        if claim is None:
            return ""
        if self._wall() - claim.first_claimed > self._config.rl.group_seconds:
            return f"not whole {self._config.rl.group_seconds:g} s after its first claim"
        if claim.takeovers >= self._config.rollout.max_takeovers and not self._alive.get(claim.owner, True):
            return f"its {claim.takeovers + 1} owners died"
        return ""

    def anyone_alive(self) -> bool:
        """Whether any registered worker still beats."""
        return any(self._alive.values())


def candidates(progress: Progress, assembler: GroupAssembler, watch: ClaimWatch) -> list[Candidate]:
    """The open groups, lowest first."""
    return [_candidate(g, assembler, watch) for g in progress.open_groups()]


def _candidate(number: int, assembler: GroupAssembler, watch: ClaimWatch) -> Candidate:
    group = assembler.get(number)
    whole = assembler.whole(number)
    overdue = "" if whole else watch.overdue(number)
    died = next((r.trajectory.detail for r in group.failures), "")
    rewards = {r.trajectory.reward for r in group.samples.values()}
    return Candidate(
        group=number,
        ready=whole or bool(overdue),
        survivors=len(group.samples),
        oldest_version=group.oldest_version() if group.samples else 0,
        level=len(rewards) == 1,
        reason=overdue or died,
    )
