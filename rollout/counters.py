"""What a worker has done, counted for its heartbeat."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from schemas.trajectory import Status, Trajectory


@dataclass
class Counters:
    """Totals since the worker's start; seconds are of its own monotonic clock."""

    clock: Callable[[], float] = time.monotonic
    trajectories: int = 0
    failed: int = 0
    quarantined: int = 0
    """Samples that were not played since their task does harm; they count as failed too."""
    abandoned: int = 0
    """Episodes that were given up or whose rows could not be sealed."""
    tokens: int = 0
    """Sampled tokens of finished attempts."""
    idle_seconds: float = 0.0
    """Time with no episode in flight."""
    takeovers: int = 0
    _started: float = field(init=False)
    _seen: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = self._seen = self.clock()

    def finished(self, row: Trajectory) -> None:
        """Count a finished attempt."""
        self.trajectories += 1
        self.failed += row.failed
        self.quarantined += row.status == Status.QUARANTINED
        self.tokens += sum(row.mask)

    def passed(self, in_flight: int) -> None:
        """The time since the last call was spent with so many episodes in flight."""
        now = self.clock()
        self.idle_seconds += 0.0 if in_flight else now - self._seen
        self._seen = now

    def values(self) -> dict[str, float]:
        """The totals by name."""
        counted = ("trajectories", "failed", "quarantined", "abandoned", "tokens", "idle_seconds", "takeovers")
        out = {name: float(getattr(self, name)) for name in counted}
        return out | {"seconds": self.clock() - self._started}


def rates(before: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    """Tokens per second and the idle share between two readings of the totals."""
    seconds = now["seconds"] - before.get("seconds", 0.0)
    if seconds <= 0:
        return {"tokens_per_second": 0.0, "rollouter_idle_ratio": 0.0}
    sampled, idle = (now.get(k, 0.0) - before.get(k, 0.0) for k in ("generated_tokens", "idle_seconds"))
    return {"tokens_per_second": sampled / seconds, "rollouter_idle_ratio": min(1.0, idle / seconds)}
