"""How old a file is, is between the store and itself: clocks of machines that run `headrace gc` may be wrong."""

import time
from dataclasses import replace

import pytest
from support.kept import DAYS, chosen, finished, settings

from storage.memory import MemoryStore
from tasks.expiry import collect


class Elsewhere(MemoryStore):
    """A store whose clock is `behind` the machine's, in seconds."""

    behind = 0.0

    def head(self, key):
        stat = super().head(key)
        return stat and replace(stat, modified=stat.modified - self.behind)


@pytest.mark.parametrize("days", [3, -3])
def test_a_clock_that_is_off_makes_nothing_older(days, monkeypatch):
    store = Elsewhere("gc")
    store.behind = days * DAYS
    finished(store, settings(6, {"keep_last": 1}))
    (plan,) = collect(store, ["test"])
    assert plan.items and chosen(plan, kept=False) == []
    future = time.time() + 2 * DAYS
    monkeypatch.setattr(time, "time", lambda: future)
    (plan,) = collect(store, ["test"])
    assert chosen(plan, kept=False)
