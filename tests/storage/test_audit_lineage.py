"""Lineage and lives: what trained a checkpoint, across runs and warm-ups, and what became of one trajectory."""

import json

import pytest
from support.audited import STEPS, edit_metadata, finished, read_record, start, turn
from support.protocol import BASE, config, spec, trajectory

from schemas import keys
from schemas.errors import AuditViolation
from schemas.manifest import Parent, RunManifest, StageManifest, WeightsRef
from schemas.promotion import Channel, Promotion
from schemas.trajectory import Status
from storage import audit
from storage.audit_runs import folders
from storage.memory import MemoryStore

START = spec(config()).initial.sha256


@pytest.fixture
def store():
    made = MemoryStore("audit")
    finished(made)
    return made


def test_a_checkpoint_lists_exactly_what_its_ledger_trained(store):
    for step in (2, 4):
        found = audit.checkpoint(store, "test", step)
        expected = [
            (index, row.position, row.trajectory)
            for index in range(step)
            for row in read_record(store, index).trained()
        ]
        assert [(t.step, t.position, t.trajectory) for t in found.segments[0].trained] == expected
    assert audit.checkpoint(store, "test").step == 4


def test_a_checkpoint_of_a_changed_ledger_is_a_violation(store):
    edit_metadata(store, 0, learner="somebody else")
    with pytest.raises(AuditViolation, match="has no record"):
        audit.checkpoint(store, "test", 4)


def child_of(store, parent, name="child"):
    """A second run, started from the parent's last checkpoint; its RL stage is a copy under its own name."""
    checkpoint = audit.checkpoint(store, parent)
    initial = WeightsRef(prefix="p", sha256=checkpoint.weights_sha256, origin=f"{parent}@{checkpoint.step}")
    base = keys.rl(name, "0123")
    document = spec(config(steps=STEPS)).model_copy(update={"run": name, "initial": initial})
    store.create(keys.spec(base), document.to_bytes())
    store.create(keys.run_manifest(name), run_manifest(name).to_bytes())
    return base


def run_manifest(name):
    return RunManifest(
        run=name, config={}, config_digest="", seed=0, code="0", python="3", created=0.0, rl_keys=("0123",)
    )


def warm_up(store, name, inputs, weights):
    manifest = StageManifest(
        stage=name,
        key="k",
        config={},
        inputs=inputs,
        weights=WeightsRef(prefix="w", sha256=weights),
        code="0",
        started=0,
        ended=1,
    )
    store.create(keys.stage_manifest(name, "k"), manifest.to_bytes())


def test_lineage_goes_through_parent_runs_and_warm_ups_down_to_data_files():
    store = MemoryStore()
    copy = Parent(kind="data", ref="data/copy.jsonl", sha256="c")
    habit = Parent(kind="data", ref="data/habit.jsonl", sha256="h")
    warm_up(store, "clean", (copy,), "c" * 64)
    warm_up(store, "habit", (habit, Parent(kind="stage", ref="stages/clean-k", sha256="c" * 64)), START)
    store.create(keys.run_manifest("test"), run_manifest("test").to_bytes())
    finished(store)
    initial = WeightsRef(prefix="w", sha256=START, origin="stages/habit-k")
    store.put(keys.spec(BASE), spec(config(steps=STEPS)).model_copy(update={"initial": initial}).to_bytes())
    assert audit.verify(store, "test").ok
    found = audit.checkpoint(store, "test")
    assert [w.stage for w in found.warm_ups] == ["stages/habit-k", "stages/clean-k"]
    assert {(p.ref, p.sha256) for p in found.data()} == {("data/x.jsonl", "x"), (copy.ref, "c"), (habit.ref, "h")}
    child = audit_child(store)
    assert [(s.run, s.step, len(s.trained)) for s in child.segments] == [("child", 0, 0), ("test", 4, STEPS * 4)]
    assert [w.stage for w in child.warm_ups] == ["stages/habit-k", "stages/clean-k"]
    assert child.to_json()["trained"] == len(child.to_json()["trajectories"]) == STEPS * 4


def audit_child(store):
    """The lineage of the child's checkpoint at step 0."""
    base = child_of(store, "test")
    parent = json.loads(store.get(keys.checkpoint_manifest(BASE, 4)).data)
    manifest = parent | {"step": 0, "version": 0, "ledger_head": "", "ledger_index": 0, "dispositions": {}}
    store.create(keys.checkpoint_manifest(base, 0), json.dumps(manifest).encode())
    return audit.checkpoint(store, "child")


def test_a_parent_with_other_weights_is_a_violation(store):
    store.create(keys.run_manifest("test"), run_manifest("test").to_bytes())
    key = keys.checkpoint_manifest(BASE, 4)
    lineage = audit_child(store)
    assert lineage.outside[0].kind == "weights"
    document = json.loads(store.get(key).data)
    changed = document["policy"] | {"sha256": "9" * 64}
    store.put(key, json.dumps(document | {"policy": changed}).encode())
    with pytest.raises(AuditViolation, match="test@4 has other weights"):
        audit.checkpoint(store, "child")


def test_the_life_of_a_trained_trajectory(store):
    row = read_record(store, 1).trained()[0]
    checkpoint = audit.checkpoint(store, "test", 4)
    promote(store, checkpoint)
    audit_child_base = child_of(store, "test")
    parent = store.get(keys.checkpoint_manifest(BASE, 4)).data
    store.create(keys.checkpoint_manifest(audit_child_base, 2), parent.replace(b'"step": 4', b'"step": 2'))
    life = audit.trajectory(store, "test", row.trajectory)
    assert (life.disposition, life.step, life.position, life.staleness) == ("trained", 1, row.position, row.staleness)
    assert life.shard == keys.shard(BASE, row.worker, row.seq)
    assert [d.checkpoint for d in life.descendants] == ["test@2", "test@4", "child@2"]
    assert [bool(d.promoted) for d in life.descendants] == [False, True, True]
    assert life.to_json()["promoted"] is True


def promote(store, lineage):
    entry = Promotion(
        ref=f"test@{lineage.step}",
        weights=WeightsRef(prefix="p", sha256=lineage.weights_sha256),
        ledger_head="",
        report="",
        previous="",
        reason="",
        time=0.0,
    )
    store.create(
        keys.channel("test", "production"),
        Channel(name="test", channel="production", history=(entry,)).to_bytes(),
    )


def test_the_life_of_a_failed_and_of_a_pending_trajectory():
    store = MemoryStore()
    made, workers = start(store)
    workers[0].writer.add(trajectory(0, 0, attempt=3, worker="w0", status=Status.FLOODED, detail="too long"))
    turn(made, workers, 1)
    failed = audit.trajectory(store, "test", "0-0-3")
    assert (failed.status, failed.reason, failed.descendants) == ("flooded", "too long", ())
    workers[0].write(50, 1)
    assert audit.trajectory(store, "test", "50-1-0").disposition == "pending"


def test_folders_are_listed_one_by_one():
    store = MemoryStore()
    for key in ("runs/a/x", "runs/a/y/z", "runs/a.b/x", "runs/a-b/x", "runs/a0/x", "runs/b/x"):
        store.create(key, b"")
    assert set(folders(store, "runs/")) == {"a", "a.b", "a-b", "a0", "b"}
