"""The learner's figures that only the learner knows (its idle share), kept for `status` beside the RL stage.

A display, not a record: the ledger is what counts.
"""

import json
import time
from collections.abc import Callable
from typing import Any

from storage.objects import ObjectStore, find
from tasks.children import Event

_KEPT = (
    "step",
    "version",
    "reward",
    "success",
    "staleness_mean",
    "staleness_max",
    "trainer_idle_ratio",
    "tokens_per_second",
)


def key(base: str) -> str:
    return f"{base}/progress.json"


class LastStep:
    """Writes the newest step's figures at most every `seconds`, and once more at the end of the stage."""

    def __init__(
        self, store: ObjectStore, base: str, seconds: float = 3.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._base, self._seconds, self._clock = store, base, seconds, clock
        self._written = -seconds
        self._pending: dict[str, Any] | None = None

    def note(self, event: Event) -> None:
        """Take in an event of the learner."""
        if event["event"] == "step":
            self._pending = {k: event[k] for k in _KEPT if k in event}
            if self._clock() - self._written >= self._seconds:
                self.flush()

    def flush(self) -> None:
        """Write what is not written yet."""
        if self._pending is not None:
            self._store.put(key(self._base), json.dumps(self._pending).encode())
            self._pending, self._written = None, self._clock()


def read(store: ObjectStore, base: str) -> dict[str, Any]:
    """The newest figures that were kept; empty if none were."""
    stored = find(store, key(base))
    return json.loads(stored.data) if stored else {}
