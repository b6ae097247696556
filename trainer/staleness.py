"""Bounded staleness: who may start (admit), what a step trains (select), what must be given up (evict).

Pure decisions on numbers; `docs/design.md` has the rules and what breaks without each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.ledger import Disposition
from trainer.progress import Bounds, Progress


@dataclass(frozen=True)
class Candidate:
    """An open group as the learner sees it."""

    group: int
    ready: bool
    """Nothing more can come, or it has waited long enough: it ends at the next step that takes it."""
    survivors: int
    oldest_version: int
    """Oldest version of its rows; meaningless without rows."""
    level: bool = False
    """All its rewards are equal."""
    reason: str = ""
    """Why it is given up before it was whole, or what its first failed attempt died of."""


@dataclass(frozen=True)
class Selection:
    """What the next step does: trains these groups in this order and ends those with a disposition and reason."""

    train: tuple[int, ...]
    settle: dict[int, tuple[Disposition, str]] = field(default_factory=dict)


class StalenessPolicy:
    """The bound on staleness at admission, at selection, and at eviction."""

    def __init__(self, bounds: Bounds, *, filter_zero_advantage: bool, least: int = 2) -> None:
        self.bounds, self._least = bounds, least
        self._filter = filter_zero_advantage

    def admit(self, progress: Progress) -> None:
        """Raise the window: open groups never exceed (steps that they may be behind + 1) x groups per batch."""
        progress.admit(self.bounds)

    def evict(self, candidate: Candidate, version: int) -> tuple[Disposition, str] | None:
        """The end of a ready group that can't be trained, or None if it can."""
        if candidate.survivors < self._least:
            needed = "one is" if self._least == 1 else "two are"
            cause = f" ({candidate.reason})" if candidate.reason else ""
            return Disposition.INCOMPLETE, f"{candidate.survivors} of its samples succeeded, {needed} needed{cause}"
        lag = version - candidate.oldest_version
        if lag > self.bounds.max_staleness:
            return Disposition.STALE, f"its oldest token was {lag} steps old"
        if self._filter and candidate.level:
            return Disposition.ZERO_ADVANTAGE, "all its rewards are equal"
        return None

    def select(self, progress: Progress, candidates: Sequence[Candidate]) -> Selection | None:
        """What step `progress.step` does, or None if it has to wait. `candidates` are the open groups, lowest first."""
        ends = {c.group: self.evict(c, progress.version) for c in candidates if c.ready}
        settle = {g: end for g, end in ends.items() if end is not None}
        trainable = [g for g, end in ends.items() if end is None]
        coming = [c.group for c in candidates if not c.ready]
        train = trainable[: self.bounds.groups_per_batch]
        if len(train) < self.bounds.groups_per_batch and coming:
            return None
        if not train and not settle:
            return None
        waiting = [*coming, *trainable[len(train) :]]
        return Selection(tuple(train), settle) if self._paced(progress, waiting) else None

    def _paced(self, progress: Progress, waiting: Sequence[int]) -> bool:
        """Whether every group left behind can still be trained in time (earliest deadline first).

        A group's last step is the version at which the limit first passed it + max_staleness. After this step, for each
        j at most j batches of groups may have their last step within the next j steps.
        """
        last = [progress.admitted[g] + self.bounds.max_staleness for g in waiting]
        horizon = range(self.bounds.max_staleness + 1)
        return all(sum(d <= progress.step + j for d in last) <= j * self.bounds.groups_per_batch for j in horizon)
