"""The catalog: a copy that answers as the ledger does, names the head it was made from, and is refused when it lies."""

import pytest
from support.audited import STEPS, edit_metadata, end, finished, record_key, start, turn
from support.protocol import BASE

from schemas import keys
from schemas.errors import AuditViolation
from schemas.ledger import record_digest
from storage import audit
from storage.catalog import open_catalog
from storage.catalog_copy import compact, covered, part_names, rebuild
from storage.catalog_part import COLUMNS
from storage.memory import MemoryStore
from trainer.compaction import Compactor


@pytest.fixture
def store():
    made = MemoryStore("catalog")
    finished(made)
    return made


class Counting:
    """A store that counts reads by the folder of the key."""

    def __init__(self, store):
        self._store, self.gets, self.lists = store, [], []

    def __getattr__(self, name):
        return getattr(self._store, name)

    def get(self, key):
        self.gets.append(key)
        return self._store.get(key)

    def list(self, prefix, after="", limit=None):
        self.lists.append(prefix)
        return self._store.list(prefix, after, limit)


def plain(answer):
    """An answer without how it was made."""
    found = answer.to_json()
    for run in found.get("runs", ()):
        run.pop("from_catalog")
    return found


def test_answers_are_those_of_the_ledger_and_carry_its_head(store):
    expected = plain(audit.checkpoint(store, "test")), audit.trajectory(store, "test", "0-0-0")
    assert compact(store, BASE) == STEPS + 1
    found = audit.checkpoint(store, "test")
    assert (plain(found), audit.trajectory(store, "test", "0-0-0")) == expected
    assert found.segments[0].from_catalog == STEPS
    assert expected[1].ledger_head == record_digest(store.get(record_key(STEPS)).data)
    assert plain(audit.checkpoint(store, "test", ledger_only=True)) == expected[0]


def test_a_catalog_saves_reading_the_records(store):
    compact(store, BASE)
    counting = Counting(store)
    audit.checkpoint(counting, "test")
    records = [key for key in counting.gets if key.startswith(f"{BASE}/ledger/")]
    assert set(records) <= {record_key(STEPS), record_key(STEPS + 1)}


def test_the_ledger_answers_behind_the_catalog():
    store = MemoryStore()
    made, workers = start(store)
    turn(made, workers, 2)
    compact(store, BASE)
    turn(made, workers, STEPS)
    end(made, workers)
    expected = plain(audit.checkpoint(store, "test", ledger_only=True))
    found = audit.checkpoint(store, "test")
    assert (plain(found), found.segments[0].from_catalog) == (expected, 2)
    compact(store, BASE)
    assert [(n.first, n.end) for n in part_names(store, BASE)] == [(0, 2), (2, STEPS + 1)]
    assert compact(store, BASE) == 0
    assert plain(audit.checkpoint(store, "test")) == expected
    rebuild(store, BASE)
    assert [(n.first, n.end) for n in part_names(store, BASE)] == [(0, STEPS + 1)]
    assert plain(audit.checkpoint(store, "test")) == expected


def test_many_small_parts_become_few():
    """Nine copies of one step each: eight of them are merged, and the answer stays the ledger's."""
    store = MemoryStore()
    made, workers = start(store, steps=12)
    for step in range(1, 10):
        turn(made, workers, step)
        compact(store, BASE)
    assert [(n.first, n.end) for n in covered(part_names(store, BASE))] == [(0, 8), (8, 9)]
    found = audit.checkpoint(store, "test")
    assert found.notes == [] and found.segments[0].from_catalog == found.step == 8
    assert plain(found) == plain(audit.checkpoint(store, "test", ledger_only=True))
    assert rebuild(store, BASE).end == 9
    assert [(n.first, n.end) for n in part_names(store, BASE)] == [(0, 9)]


def test_a_copy_deletes_nothing_else(store):
    before = {key: store.get(key).data for key in store.list("")}
    compact(store, BASE)
    rebuild(store, BASE)
    after = {key: store.get(key).data for key in store.list("") if not key.startswith(keys.catalog(BASE))}
    assert after == before
    assert audit.verify(store, "test").ok


def test_a_row_has_the_facts_of_its_shard(store):
    compact(store, BASE)
    found = open_catalog(store, BASE, facts=True)
    (row,) = found.find("trajectory", "0-0-3").to_pylist()
    assert (row["disposition"], row["status"], row["length"], row["sampled"]) == ("failed", "flooded", 4, 2)
    assert (row["oldest"], row["newest"]) == (0, 0)
    live = open_catalog(store, BASE, facts=True, ledger_only=True)
    assert live.tail.table.to_pylist() == [r for p in found.parts for r in p.read(COLUMNS.names).to_pylist()]


def test_a_catalog_of_another_ledger_is_refused(store):
    compact(store, BASE)
    edit_metadata(store, STEPS, learner="somebody else")
    found = audit.checkpoint(store, "test")
    assert found.segments[0].from_catalog == 0
    assert "which is not in the ledger" in found.notes[0]
    edit_metadata(store, 0, learner="somebody else")
    with pytest.raises(AuditViolation, match="has no record"):
        audit.checkpoint(store, "test")


@pytest.mark.parametrize(
    "change", [lambda d: d[:100] + bytes([d[100] ^ 1]) + d[101:], lambda d: d[:-20], lambda d: b""]
)
def test_a_damaged_part_is_refused_and_the_ledger_answers(store, change):
    expected = plain(audit.checkpoint(store, "test"))["trajectories"]
    compact(store, BASE)
    key = part_names(store, BASE)[0].key(BASE)
    store.put(key, change(store.get(key).data))
    found = audit.checkpoint(store, "test")
    assert f"{key} is truncated or damaged" in found.notes[0]
    assert plain(found)["trajectories"] == expected
    rebuild(store, BASE)
    assert audit.checkpoint(store, "test").notes == []


def test_a_part_under_another_s_name_is_refused(store):
    compact(store, BASE)
    name = part_names(store, BASE)[0]
    store.put(keys.catalog_part(BASE, 0, 99, name.sha256 + "0" * 48), store.get(name.key(BASE)).data)
    assert "covers other records than its name says" in open_catalog(store, BASE).refused


def test_the_learner_copies_at_checkpoints_and_a_failing_copy_stops_nothing():
    store, said = MemoryStore(), []
    compactor = Compactor(store, BASE, lambda event, **fields: said.append(fields))
    made, workers = start(store)
    made._compact = compactor.finish
    turn(made, workers, 2)
    assert [(n.first, n.end) for n in part_names(store, BASE)] == [(0, 2)]
    store.delete(record_key(1))
    compactor()
    compactor.finish()
    assert "was not copied into catalog and metrics" in said[-1]["message"]
