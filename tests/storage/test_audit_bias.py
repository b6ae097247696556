"""Bias: what was generated against what was trained."""

import pytest
from support.audited import end, finished, start, turn
from support.protocol import BASE, trajectory

from schemas.errors import RequestError
from storage import audit
from storage.audit_bias import bias
from storage.catalog_copy import compact
from storage.memory import MemoryStore


def test_counts_are_those_of_the_ledger():
    store = MemoryStore()
    finished(store)
    verified, found = audit.verify(store, "test").to_json(), bias(store, "test")
    assert found.generated == sum(verified["dispositions"].values())
    assert found.trained == verified["dispositions"]["trained"]
    assert {(s.value, s.generated, s.trained) for s in found.shares if s.name == "status"} == {
        ("succeeded", found.generated - 1, found.trained),
        ("flooded", 1, 0),
    }
    assert sum(s.generated for s in found.shares if s.name == "task") == found.generated
    compact(store, BASE)
    assert bias(store, "test") == found


def test_long_rows_that_fall_out_are_noticed():
    """Second attempts at a sample that is trained already are not; here they are the long ones."""
    store = MemoryStore()
    made, workers = start(store)
    turn(made, workers, 1)
    long = {"tokens": (1,) * 40, "mask": (False,) * 2 + (True,) * 38, "logprobs": (0.0,) * 40}
    for attempt in range(10, 40):
        workers[0].writer.add(trajectory(0, 0, attempt=attempt, worker="w0", **long))
    turn(made, workers, 4)
    end(made, workers)
    found = {c.name: c for c in bias(store, "test").comparisons}
    assert found["length"].generated_mean > found["length"].trained_mean
    assert found["length"].trained_mean == 4
    assert found["length"].p < 1e-4 and found["length"].statistic > 0.9
    assert found["status"].p == 1.0
    assert 0 <= found["difficulty"].trained_mean <= 1


def test_rows_that_cannot_be_read_are_counted():
    store = MemoryStore()
    finished(store)
    key = next(k for k in store.list(f"{BASE}/trajectories/") if len(store.get(k).data) > 200)
    store.put(key, b"damaged")
    found = bias(store, "test")
    assert found.unreadable > 0
    assert found.generated == found.unreadable + sum(s.generated for s in found.shares if s.name == "status")


def test_nothing_to_compare_is_refused():
    store = MemoryStore()
    start(store)
    with pytest.raises(RequestError, match="nothing to compare"):
        bias(store, "test")
