"""Audits of runs that the real learner made around fakes: a sound run is sound, and whatever is changed is named."""

import ast
import dataclasses
import json
from pathlib import Path

import pytest
from support import recount
from support.audited import STEPS, edit_metadata, edit_record, finished, read_record, record_key, start, turn
from support.protocol import BASE, METADATA, config, spec, trajectory

from schemas import keys
from schemas.errors import RequestError
from schemas.ledger import Kind, LedgerRow
from storage import audit, control
from storage.folder import FolderStore
from storage.memory import MemoryStore
from storage.shards import END_MARKER, decode_shard, encode_shard


@pytest.fixture
def store():
    made = MemoryStore("audit")
    finished(made)
    return made


def shard_key(store, rows=2):
    """The first shard with trained rows."""
    row = read_record(store, 1).trained()[0]
    return keys.shard(BASE, row.worker, row.seq)


def edit_shard(store, key, change):
    metadata, rows = decode_shard(store.get(key).data)
    store.put(key, encode_shard(change(rows), metadata))


def violations(store):
    found = audit.verify(store, "test")
    assert found.ok == (not found.violations)
    return "\n".join(found.violations)


def test_a_finished_run_is_sound(store):
    found = audit.verify(store, "test").to_json()
    assert found["violations"] == []
    assert found["ok"]
    assert (found["unaccounted"], found["pending"], found["trained_twice"]) == (0, 0, 0)
    assert found["dispositions"]["trained"] == STEPS * 4
    assert found["dispositions"]["failed"] == 1
    assert found["generated"] == found["checked_rows"] == sum(found["dispositions"].values())
    assert found["max_staleness"] == found["stages"][0]["bound"] == 1
    assert found["stages"][0]["unreadable"] == 1
    assert json.dumps(found)


def test_a_live_run_has_pending_rows_and_is_sound():
    store = MemoryStore()
    made, workers = start(store)
    turn(made, workers, 2)
    workers[0].work(1)
    found = audit.verify(store, "test").to_json()
    assert found["ok"]
    assert found["pending"] > 0
    assert found["unaccounted"] == 0


def test_a_recount_without_any_of_our_code_agrees(tmp_path):
    store = FolderStore(tmp_path)
    finished(store)
    found, counted = audit.verify(store, "test").to_json(), recount.recount(tmp_path, "test")
    trained = counted.pop("trained")
    assert {k: found[k] for k in counted} == counted
    lineage = audit.checkpoint(store, "test").to_json()
    assert [[t["step"], t["position"], t["trajectory"]] for t in lineage["trajectories"]] == trained


def test_the_recount_imports_nothing_of_ours():
    tree = ast.parse(Path(recount.__file__).read_text())
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert set(names) <= {"hashlib", "json", "struct", "sys", "collections", "pathlib", "pyarrow"}


@pytest.mark.parametrize("change", [lambda rows: rows[:-1], lambda rows: rows[1:]])
def test_a_row_removed_from_a_shard_is_found(store, change):
    key = shard_key(store)
    edit_shard(store, key, change)
    assert key in violations(store)


@pytest.mark.parametrize("place", [0, 2])
def test_a_row_doubled_in_a_shard_is_found(store, place):
    key = shard_key(store)
    edit_shard(store, key, lambda rows: [*rows[:place], rows[0], *rows[place:]])
    found = violations(store)
    assert "stands twice" in found
    assert key in found


def test_a_row_copied_into_a_new_shard_is_found():
    store = MemoryStore()
    made, workers = start(store)
    turn(made, workers, 2)
    copied = decode_shard(store.get(shard_key(store)).data)[1]
    store.create(keys.shard(BASE, "w1", workers[1].writer.next_seq), encode_shard(copied[:1], METADATA))
    assert "stands twice" in violations(store)


@pytest.mark.parametrize(
    "change",
    [
        {"reward": 0.25},
        {"logprobs": (0.0, 0.0, -0.5, -0.26)},
        {"tokens": (1, 2, 3, 5)},
        {"versions": (1,)},
        {"messages": "[1]"},
    ],
)
def test_an_edited_row_of_a_shard_is_found(store, change):
    key = shard_key(store)
    edit_shard(store, key, lambda rows: [dataclasses.replace(rows[0], **change), *rows[1:]])
    assert f"row 0 of {key}" in violations(store)


def test_a_shard_of_another_format_is_found(store):
    key = shard_key(store)
    metadata, rows = decode_shard(store.get(key).data)
    store.put(key, encode_shard(rows, dataclasses.replace(metadata, schema_version=99)))
    assert f"{key}, of which the ledger names 2 rows, is written with schema version 99" in violations(store)
    store.put(key, encode_shard(rows, dataclasses.replace(metadata, tokenizer="other")))
    assert "different tokenizers" in violations(store)


def test_every_flipped_byte_of_a_record_is_found(store):
    data = store.get(record_key(1)).data
    for place in range(0, len(data), 97):
        flipped = data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]
        store.put(record_key(1), flipped)
        assert violations(store), f"byte {place}"


def test_a_flipped_byte_of_a_shard_never_changes_what_is_read_unnoticed(store):
    key = shard_key(store)
    data = store.get(key).data
    rows = decode_shard(data)
    for place in range(0, len(data), 101):
        flipped = data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]
        store.put(key, flipped)
        found = violations(store)
        assert found or decode_shard(flipped) == rows, f"byte {place}"


def test_a_missing_shard_is_found(store):
    key = shard_key(store)
    store.delete(key)
    assert f"{key} is missing" in violations(store)


def test_a_removed_last_shard_is_found_though_no_row_of_it_was_trained_yet():
    store = MemoryStore()
    made, workers = start(store)
    turn(made, workers, 2)
    assert workers[0].work(1) or workers[1].work(1)
    for worker in workers:
        state = worker.state.model_copy(update={"next_seq": worker.writer.next_seq})
        control.beat(store, BASE, state)
    last = max(keys.shard(BASE, w.name, w.writer.next_seq - 1) for w in workers)
    assert violations(store) == ""
    store.delete(last)
    assert f"{last} is missing" in violations(store)


def test_a_missing_end_marker_and_a_late_shard_are_found(store):
    worker = "w1"
    seq = next(i for i in range(99) if store.get(keys.shard(BASE, worker, i)).data == END_MARKER)
    late = encode_shard([trajectory(90, 0, worker=worker)], METADATA)
    store.put(keys.shard(BASE, worker, seq), late)
    found = violations(store)
    assert "has no end marker" in found
    assert "90-0-0" in found
    assert audit.verify(store, "test").to_json()["unaccounted"] == 1
    store.put(keys.shard(BASE, worker, seq), END_MARKER)
    store.put(keys.shard(BASE, worker, seq + 1), late)
    assert "is an end marker though" in violations(store)


def test_a_removed_registration_is_found(store):
    store.delete(keys.worker(BASE, 0))
    assert f"{keys.worker(BASE, 0)} is missing" in violations(store)
    store.delete(keys.worker(BASE, 1))
    assert "w1 belongs to no registered worker" in violations(store)


def test_an_unreadable_shard_that_is_not_in_the_ledger_is_found(store):
    close = read_record(store, STEPS)
    shard = next(r for i in range(STEPS + 1) for r in read_record(store, i).rows if r.kind == Kind.SHARD)
    for index in range(STEPS + 1):
        edit_record(store, index, lambda rows: [r for r in rows if r.kind != Kind.SHARD])
    assert f"{keys.shard(BASE, shard.worker, shard.seq)} can't be read" in violations(store)
    assert close.metadata.kind == "close"


def test_an_unreadable_shard_that_can_be_read_after_all_is_found(store):
    shard = next(r for i in range(STEPS + 1) for r in read_record(store, i).rows if r.kind == Kind.SHARD)
    key = keys.shard(BASE, shard.worker, shard.seq)
    store.put(key, encode_shard([trajectory(70, 0, worker="w0")], METADATA))
    assert f"{key} is recorded as unreadable and can be read" in violations(store)


REWRITES = {
    "removed": (lambda rows: rows[1:], "has no disposition"),
    "doubled": (lambda rows: [rows[0], *rows], "two dispositions"),
    "redigested": (lambda rows: [dataclasses.replace(rows[0], row_digest="0" * 64), *rows[1:]], "another digest"),
    "renamed": (lambda rows: [dataclasses.replace(rows[0], trajectory="9-9-9"), *rows[1:]], "called otherwise"),
    "moved": (lambda rows: [dataclasses.replace(rows[0], row=77), *rows[1:]], "which the shard does not have"),
    "younger": (lambda rows: [dataclasses.replace(rows[0], staleness=0, in_flight=1), *rows[1:]], "has staleness"),
    "swapped": (
        lambda rows: [dataclasses.replace(rows[1], position=0), dataclasses.replace(rows[0], position=1), *rows[2:]],
        "not ordered",
    ),
    "gap": (lambda rows: [dataclasses.replace(rows[0], position=9), *rows[1:]], "batch positions"),
    "relabelled": (
        lambda rows: [dataclasses.replace(rows[0], disposition="stale"), *rows[1:]],
        "its group 2 does not end so",
    ),
    "invented": (
        lambda rows: [dataclasses.replace(rows[0], disposition="liked"), *rows[1:]],
        "unknown disposition `liked`",
    ),
    "ended again": (
        lambda rows: [*rows, LedgerRow(Kind.GROUP, group=0, disposition="trained")],
        "group 0 ended twice",
    ),
}


@pytest.mark.parametrize("change", REWRITES)
def test_a_record_edited_by_hand_is_found_twice_over(store, change):
    """By the chain, and by what the edit says: a chain that was forged to the end would not hide it."""
    edit, complaint = REWRITES[change]
    edit_record(store, 1, edit)
    found = violations(store)
    assert f"{record_key(2)} does not follow the record before it" in found
    assert complaint in found


def test_the_last_record_is_covered_by_manifests(store):
    edit_record(store, STEPS - 1, lambda rows: [dataclasses.replace(rows[0], weight=0.5), *rows[1:]])
    assert "names a ledger head that is not in the ledger" in violations(store)


def test_removed_records_are_found(store):
    store.delete(record_key(1))
    assert f"{record_key(1)} is missing" in violations(store)
    for index in range(STEPS + 1):
        store.delete(record_key(index))
    assert "checkpoints/00000002/manifest.json names a ledger head that is not in the ledger" in violations(store)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"schema_version": 99}, "schema version 99"),
        ({"step": 3}, "says step 3 where step 1 follows"),
        ({"version": 3}, "says policy version 3 before step 1"),
        ({"updates": 0}, "says 0 updates and has 4 trained rows"),
        ({"parent": "f" * 64}, "names other weights for version 0"),
        ({"kind": "close"}, "closing record"),
    ],
)
def test_edited_metadata_of_a_record_is_found(store, changes, complaint):
    edit_metadata(store, 1, **changes)
    assert complaint in violations(store) or "1 updates" in violations(store)
    assert record_key(1) in violations(store)


def test_a_forged_chain_is_found_by_what_it_claims():
    """Somebody trains a sample again and rewrites every later record: the samples tell."""
    store = MemoryStore()
    made, workers = start(store)
    turn(made, workers, 2)
    again = read_record(store, 0).trained()[0]
    edit_record(store, 1, lambda rows: [dataclasses.replace(again, staleness=1), *rows[1:]])
    found = audit.verify(store, "test")
    assert found.to_json()["trained_twice"] == 1
    assert any("was trained 2 times: in step 0, step 1" in v for v in found.violations)


def test_staleness_beyond_the_bound_is_found(store):
    changed = spec(config(steps=STEPS, max_staleness=0))
    store.put(keys.spec(BASE), changed.to_bytes())
    assert "was trained at staleness 1; the bound is 0" in violations(store)


def test_edited_manifests_are_found(store):
    key = keys.checkpoint_manifest(BASE, 2)
    document = json.loads(store.get(key).data)
    store.put(key, json.dumps(document | {"dispositions": {"trained": 1}}).encode())
    assert f"{key} counts other dispositions" in violations(store)
    store.put(key, json.dumps(document | {"version": 3}).encode())
    assert f"{key} says version 3" in violations(store)
    store.put(key, json.dumps(document | {"schema_version": 99}).encode())
    assert f"{key} was written with schema version 99" in violations(store)
    other = document["policy"] | {"sha256": "0" * 64}
    store.put(key, json.dumps(document | {"policy": other}).encode())
    assert f"{key} names other weights than the policy 2" in violations(store)


def test_a_run_that_is_not_there_is_a_wrong_request(store):
    with pytest.raises(RequestError, match="there is no run `nobody`"):
        audit.verify(store, "nobody")
    with pytest.raises(RequestError, match="no checkpoint `test@3`: steps with one are 2, 4"):
        audit.checkpoint(store, "test", 3)
    with pytest.raises(RequestError, match="no trajectory `x`"):
        audit.trajectory(store, "test", "x")
