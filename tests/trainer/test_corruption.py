"""Damage that reaches a live learner, and stores that fail it: found, named, never trained; and the run resumes."""

import dataclasses
import errno
import os

import pytest
from support.audited import STEPS, edit_metadata, edit_record, end, read_record, start, turn
from support.protocol import BASE, METADATA, FakeWorker, config, learner, trajectory

from schemas import keys
from schemas.errors import LogDamaged, RunStopped
from schemas.ledger import Kind
from storage import audit
from storage.folder import FolderStore
from storage.memory import MemoryStore
from storage.shards import UnreadableShard, decode_shard, encode_shard


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_no_flipped_bit_of_a_shard_passes():
    rows = [trajectory(g, s, messages="[" + "1," * 200 + "1]") for g in range(2) for s in range(2)]
    data = encode_shard(rows, METADATA)
    assert decode_shard(data)[1] == rows
    for place in range(0, len(data), 7):
        with pytest.raises(UnreadableShard):
            decode_shard(flipped(data, place))


DAMAGE = {
    "flipped": lambda data: flipped(data, len(data) // 2),
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "foreign": lambda data: encode_shard(decode_shard(data)[1], dataclasses.replace(METADATA, schema_version=99)),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_shard_that_arrives_damaged_is_named_and_never_trained(how):
    store = MemoryStore()
    made, workers = start(store)
    turn(made, workers, 1)
    seq = workers[0].writer.next_seq
    workers[0].work(1)
    key = keys.shard(BASE, "w0", seq)
    whole = store.get(key).data
    lost = {t.id for t in decode_shard(whole)[1]}
    store.put(key, DAMAGE[how](whole))
    made.tick()
    (group,) = {int(i.split("-")[0]) for i in lost}
    for sample in range(2):  # another worker makes the missing samples anew
        workers[1].writer.add(trajectory(group, sample, attempt=0, version=made.progress.version, worker="w1"))
    workers[1].writer.seal()
    turn(made, workers, STEPS)
    end(made, workers)
    rows = [row for index in range(STEPS + 1) for row in read_record(store, index).rows]
    (entry,) = [row for row in rows if row.kind == Kind.SHARD]
    assert (entry.worker, entry.seq) == ("w0", seq) and entry.reason
    assert not [row for row in rows if row.kind == Kind.TRAJECTORY and (row.worker, row.seq) == ("w0", seq)]
    assert audit.verify(store, "test").ok


def test_a_missing_number_is_waited_for_and_not_passed_over():
    store = MemoryStore()
    made, workers = start(store)
    seq = workers[0].writer.next_seq
    workers[0].work(2)
    key = keys.shard(BASE, "w0", seq)
    held = store.get(key).data
    store.delete(key)
    for _ in range(3):
        assert not made.tick()
    found = "\n".join(audit.verify(store, "test").violations)
    assert f"{key} is missing" in found
    store.create(key, held)
    turn(made, workers, STEPS)
    end(made, workers)
    assert audit.verify(store, "test").ok


def test_a_record_that_was_edited_by_hand_is_not_replayed():
    store = MemoryStore()
    made, workers = start(store, checkpoint_every=50)
    turn(made, workers, 3)
    edit_record(store, 1, lambda rows: [row for row in rows if row.sample != 1])
    assert keys.ledger(BASE, 2) in "\n".join(audit.verify(store, "test").violations)
    with pytest.raises(RunStopped, match="gave other weights for policy 2"):
        learner(store, config(steps=STEPS, checkpoint_every=50), "L2").recover()


def test_a_broken_chain_is_not_replayed():
    store = MemoryStore()
    made, workers = start(store, checkpoint_every=50)
    turn(made, workers, 3)
    edit_metadata(store, 1, learner="somebody else")
    with pytest.raises(LogDamaged, match=f"{keys.ledger(BASE, 2)} does not follow"):
        learner(store, config(steps=STEPS, checkpoint_every=50), "L2").recover()


def test_the_newest_record_with_other_contents_is_not_trained():
    """Nothing follows it yet; the policy that was published after it does not fit."""
    store = MemoryStore()
    made, workers = start(store, checkpoint_every=50)
    turn(made, workers, 3)
    edit_record(store, 2, lambda rows: [row for row in rows if row.sample != 1])
    with pytest.raises(RunStopped, match="gave other weights for policy 3"):
        learner(store, config(steps=STEPS, checkpoint_every=50), "L2").recover()
    assert audit.verify(store, "test").violations


def test_a_flipped_bit_of_a_record_is_named_on_resume():
    store = MemoryStore()
    made, workers = start(store, checkpoint_every=50)
    turn(made, workers, 2)
    key = keys.ledger(BASE, 1)
    store.put(key, flipped(store.get(key).data, len(store.get(key).data) // 2))
    with pytest.raises(LogDamaged, match=f"{key} is"):
        learner(store, config(steps=STEPS, checkpoint_every=50), "L2").recover()


def test_a_foreign_record_is_named_on_resume():
    store = MemoryStore()
    made, workers = start(store, checkpoint_every=50)
    turn(made, workers, 2)
    edit_metadata(store, 1, schema_version=99)
    with pytest.raises(LogDamaged, match="schema version 99"):
        learner(store, config(steps=STEPS, checkpoint_every=50), "L2").recover()


def broken_writes(patch, number, after):
    """From the write number `after` on, the disk is full or writing is forbidden."""
    call, done = os.write, []

    def write(descriptor, data):
        done.append(descriptor)
        if len(done) > after:
            raise OSError(number, os.strerror(number))
        return call(descriptor, data)

    patch.setattr(os, "write", write)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("after", range(0, 16, 3))
def test_a_disk_that_fails_stops_the_learner_and_it_resumes(tmp_path, monkeypatch, number, after):
    store = FolderStore(tmp_path)
    made, workers = start(store)
    turn(made, workers, 1)
    for worker in workers:
        worker.work(2)
    with monkeypatch.context() as patch:
        broken_writes(patch, number, after)
        with pytest.raises(RunStopped, match=os.strerror(number).lower()) as stopped:
            for _ in range(20):
                made.tick()
                for worker in workers:
                    worker.work(1)
    assert str(tmp_path) in str(stopped.value)
    made = learner(store, config(steps=STEPS), "L2")
    made.recover()
    for worker in workers:
        finish(store, worker)
    turn(made, workers, STEPS)
    end(made, workers)
    assert audit.verify(store, "test").ok


def finish(store, worker: FakeWorker):
    """A worker that resumes makes what it had claimed and could not seal."""
    sealed = {t.group for seq in range(worker.writer.next_seq) for t in rows_of(store, worker.name, seq)}
    for key in store.list(f"{BASE}/claims/"):
        group = int(key[-13:-5])
        if worker.name in store.get(key).data.decode() and group not in sealed:
            worker.write(group, 0 if group < 4 else 1)


def rows_of(store, name, seq):
    return decode_shard(store.get(keys.shard(BASE, name, seq)).data)[1]
