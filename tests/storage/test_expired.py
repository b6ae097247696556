"""An expired checkpoint: whoever meets one says what it was, and nothing takes it for whole."""

import pytest
from support.audited import end, start, turn
from support.expiring import expire
from support.protocol import BASE, FakeUpdater, FakeWorker, config, learner, spec

from schemas import keys
from schemas.errors import RequestError
from schemas.manifest import CheckpointManifest
from storage import audit, audit_impact, audit_lineage
from storage.audit_runs import find_checkpoint
from storage.expired import check_weights, expired_checkpoints, newest_whole
from storage.memory import MemoryStore
from trainer.replay_process import replay_checkpoint

STEPS = 8


@pytest.fixture
def store():
    made = MemoryStore("expired")
    first, workers = start(made, steps=STEPS)
    turn(first, workers, STEPS)
    end(first, workers)
    return made


def weights(store, step):
    return find_checkpoint(store, "test", step)[1].policy


def again(store, step, **options):
    document = spec(config(steps=STEPS))
    return replay_checkpoint(store, document, BASE, step, FakeUpdater(store), report=lambda *_, **__: None, **options)


def test_its_weights_are_refused_with_its_story(store):
    for step in (2, 4):
        expire(store, BASE, step)
    with pytest.raises(RequestError, match=r"test@4's snapshot and weights expired on 2026-09-21 \(keep_last = 1\)"):
        check_weights(store, weights(store, 4))
    with pytest.raises(
        RequestError, match="`headrace audit replay test@4 --weights FOLDER` retrains it from version 0"
    ):
        check_weights(store, weights(store, 4))
    expire(store, BASE, 8)
    with pytest.raises(RequestError, match="retrains it from test@6"):
        check_weights(store, weights(store, 8))
    check_weights(store, weights(store, 6))


def test_a_marked_one_is_refused_and_a_void_tombstone_is_none(store):
    expire(store, BASE, 2, "marked", files=False)
    with pytest.raises(RequestError, match="expired"):
        check_weights(store, weights(store, 2))
    expire(store, BASE, 2, "kept", files=False)
    check_weights(store, weights(store, 2))
    assert expired_checkpoints(store, BASE) == {}


@pytest.mark.parametrize(("gone", "step", "start"), [((2, 4), 6, 0), ((4, 6), 8, 2), ((6, 8), 8, 4), ((), 8, 6)])
def test_replay_starts_from_the_nearest_snapshot_that_is_there(store, gone, step, start):
    for each in gone:
        expire(store, BASE, each)
    found = again(store, step)
    assert (found.start, found.records, found.bitwise) == (start, step - start, True)


def test_whoever_looks_below_a_step_reads_no_manifest_above_it(store):
    read, get = [], store.get
    store.get = lambda key: read.append(key) or get(key)
    assert newest_whole(store, BASE, below=4).step == 2
    assert {key.rsplit("/", 2)[1] for key in read} == {"00000002"}


def test_recovery_passes_over_it():
    made = MemoryStore("recovery")
    first, workers = start(made, steps=STEPS)
    turn(first, workers, 7)
    expire(made, BASE, 6)
    expire(made, BASE, 4)
    assert newest_whole(made, BASE).step == 2
    second = learner(made, config(steps=STEPS), "L2")
    assert second.recover() == 5
    assert second.updater.params == first.updater.params
    workers.append(FakeWorker(made, config(steps=STEPS), "w2"))
    turn(second, workers, STEPS)
    end(second, workers)
    found = audit.verify(made, "test")
    assert found.ok and found.total("expired") == 2


def test_audits_count_it_and_speak_of_it(store):
    expire(store, BASE, 4)
    found = audit.verify(store, "test")
    assert found.ok and found.to_json()["expired"] == 1
    lineage = audit_lineage.checkpoint(store, "test", 4)
    assert lineage.table().num_rows == 16
    assert "test@4's snapshot and weights expired" in lineage.notes[0]
    assert lineage.to_json()["runs"][0]["expired"]
    trained = lineage.segments[0].trained[0].trajectory
    reached = audit_impact.impact(store, "test", trained)
    assert [(a.step, a.expired) for a in reached.artifacts if a.kind == "checkpoint"] == [
        (2, False), (4, True), (6, False), (8, False),
    ]  # fmt: skip


def test_a_tombstone_of_another_step_is_a_violation(store):
    made = expire(store, BASE, 4)
    store.put(keys.checkpoint_expired(BASE, 6), made.to_bytes())
    sentence = audit.verify(store, "test").sentence()
    assert "00000006/expired.json speaks of a checkpoint that has no such manifest" in sentence


def test_a_tombstone_of_another_checkpoint_is_a_violation(store):
    made = expire(store, BASE, 4)
    store.put(keys.checkpoint_expired(BASE, 4), made.model_copy(update={"params_sha256": "f" * 64}).to_bytes())
    assert "speaks of a checkpoint that has no such manifest" in audit.verify(store, "test").sentence()
    key = keys.checkpoint_manifest(BASE, 4)
    assert CheckpointManifest.from_bytes(store.get(key).data, key).step == 4
