"""What a step says of itself in the field's names: staleness, in flight and in queue; idle shares; reward."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from schemas.ledger import Disposition, Kind, LedgerRow
from trainer.assembler import Row
from trainer.record import StepRows


def staleness(rows: Sequence[LedgerRow]) -> dict[str, float]:
    """`off_policy/*` of a step, in optimizer updates: total = in flight + in queue; dropped rows counted."""
    trained = [r for r in rows if r.disposition == Disposition.TRAINED and r.staleness is not None]
    total = np.array([r.staleness or 0 for r in trained], dtype=np.float64)
    flight = np.array([r.in_flight or 0 for r in trained], dtype=np.float64)
    dropped = sum(r.disposition == Disposition.STALE and r.trajectory is not None for r in rows)
    named = {"off_policy": total, "off_policy/in_flight": flight, "off_policy/in_queue": total - flight}
    out = {f"{k}/{f.__name__}": float(f(v)) if v.size else 0.0 for k, v in named.items() for f in (np.mean, np.max)}
    return out | {"off_policy/dropped": float(dropped)}


def batch(rows: Sequence[Row]) -> dict[str, float]:
    """Reward, success, length and worker spread of a batch."""
    if not rows:
        return {"reward": 0.0, "success": 0.0, "tokens": 0.0, "length": 0.0}
    rewards = np.array([r.trajectory.reward for r in rows])
    lengths = np.array([len(r.trajectory.tokens) for r in rows])
    return {
        "reward": float(rewards.mean()),
        "success": float(np.mean([r.trajectory.solved for r in rows])),
        "tokens": float(lengths.sum()),
        "sampled_tokens": float(sum(sum(r.trajectory.mask) for r in rows)),
        "length": float(lengths.mean()),
        "length_max": float(lengths.max()),
        "two_versions": float(np.mean([len(set(r.trajectory.versions)) > 1 for r in rows])),
    }


def zero_advantage(rows: Sequence[LedgerRow]) -> dict[str, float]:
    """The share of a step's groups, trained or filtered, from which nothing can be learned."""
    judged = {r.group for r in rows if r.kind == Kind.GROUP and r.disposition in _JUDGED}
    useful = {r.group for r in rows if r.kind == Kind.TRAJECTORY and r.advantage}
    return {"zero_advantage": len(judged - useful) / len(judged)} if judged else {}


_JUDGED = (Disposition.TRAINED, Disposition.ZERO_ADVANTAGE)


class Clock:
    """Shares of time: how long the learner worked and how long it waited for rows, over the last steps."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, steps: int = 20) -> None:
        self._steps: deque[tuple[float, float]] = deque(maxlen=steps)
        self._clock, self._mark = clock, clock()
        self._waited = 0.0

    def waited(self) -> None:
        """The time since the last mark was spent waiting."""
        now = self._clock()
        self._waited += now - self._mark
        self._mark = now

    def worked(self) -> tuple[float, float]:
        """The time since the last mark was spent on a step; returns (busy, waited) seconds of that step."""
        now = self._clock()
        step = (now - self._mark, self._waited)
        self._steps.append(step)
        self._mark, self._waited = now, 0.0
        return step

    def idle_ratio(self) -> float:
        """`trainer/idle_ratio`: waited / (waited + busy)."""
        busy, waited = (sum(s[i] for s in self._steps) for i in (0, 1))
        return waited / (busy + waited) if busy + waited else 0.0


_KEPT = {"off_policy/mean": "staleness"} | {
    name: name for name in ("mismatch_kl", "effective_sample_size", "entropy", "reward", "success", "length")
}


def kept(figures: Mapping[str, float]) -> dict[str, float]:
    """Those of a step's figures whose means checkpoints carry, under the names that the gate and people use."""
    return {kept: figures[name] for name, kept in _KEPT.items() if name in figures}


_OF_NOTHING = ("off_policy/dropped", "zero_advantage")


def recorded(figures: Mapping[str, float], *, trained: bool) -> dict[str, float]:
    """Those that the next ledger record has; of a step that trained nothing, those that mean something."""
    return {name: value for name, value in figures.items() if trained or name in _OF_NOTHING}


def summary(step: StepRows) -> dict[str, float]:
    """All of a step's figures that need no arrays of the learner."""
    return batch(step.batch) | staleness(step.ledger) | zero_advantage(step.ledger)
