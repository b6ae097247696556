"""How old a file is, is between the store and itself: clocks of machines that run `headrace gc` may be wrong."""

import time

import pytest
from support.kept import DAYS, chosen, finished, settings

from storage.memory import MemoryStore
from tasks.expiry import collect


@pytest.mark.parametrize("off", [-3, 3])
def test_a_clock_that_is_off_makes_nothing_older(off):
    days = [off]
    store = MemoryStore("gc", lambda: time.time() + days[0] * DAYS)
    finished(store, settings(12, {"keep_last": 1}))
    (plan,) = collect(store, ["test"])
    assert plan.items and chosen(plan, kept=False) == []
    days[0] += 2
    (plan,) = collect(store, ["test"])
    assert [i.step for i in chosen(plan, kept=False) if i.kind == "checkpoint"] == [2, 4, 6, 8]
