"""A waiting learner looks, a few times a lease, whether another has written the record that is next for it.

It would meet that record when it appends, but it may never come so far: groups that its successor has ended are played
no further, and so never become whole for it.
"""

import time
from collections.abc import Callable

from storage import ledger
from storage.objects import ObjectStore


class SuccessorWatch:
    """Asks for one object, and only after `seconds` of waiting for the same step."""

    def __init__(
        self, store: ObjectStore, base: str, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._base, self._seconds, self._clock = store, base, seconds, clock
        self._index, self._looked = -1, 0.0

    def look(self, index: int) -> None:
        """Call while waiting to write record `index`. Raises Fenced if another learner has written it."""
        now = self._clock()
        if index != self._index:
            self._index, self._looked = index, now
        elif now - self._looked >= self._seconds:
            self._looked = now
            ledger.expect_end(self._store, self._base, index)
