"""A finished run of the real learner around fakes, and ways to tamper with what it stored."""

import dataclasses

from schemas import keys
from schemas.ledger import Record, decode, encode
from schemas.trajectory import Status
from support.protocol import BASE, FakeWorker, config, learner, spec, trajectory

STEPS = 4


def start(store, **options):
    run = config(**{"steps": STEPS, **options})
    store.create(keys.spec(BASE), spec(run).to_bytes())
    made = learner(store, run)
    made.recover()
    return made, [FakeWorker(store, run, "w0"), FakeWorker(store, run, "w1")]


def turn(made, workers, steps):
    while made.progress.step < steps:
        for worker in workers:
            worker.work(2)
        made.tick()


def end(made, workers):
    for worker in workers:
        worker.leave()
    assert made.close() == "finished"


def finished(store):
    """A closed run with trained rows, a failed attempt, a duplicate, a late row and an unreadable shard."""
    made, workers = start(store)
    w0 = workers[0]
    w0.writer.add(trajectory(0, 0, attempt=3, worker="w0", status=Status.FLOODED, detail="too long"))
    turn(made, workers, 2)
    w0.writer.add(trajectory(0, 0, attempt=1, worker="w0"))
    w0.writer.seal()
    store.create(keys.shard(BASE, "w0", w0.writer.next_seq), b"not a shard")
    w0.writer.next_seq += 1
    turn(made, workers, STEPS)
    end(made, workers)
    return made


def record_key(index):
    return keys.ledger(BASE, index)


def read_record(store, index):
    return decode(store.get(record_key(index)).data)


def edit_record(store, index, change):
    """Put `change(rows)` in the place of a record's rows."""
    record = read_record(store, index)
    store.put(record_key(index), encode(Record(record.metadata, tuple(change(list(record.rows))))))


def edit_metadata(store, index, **changes):
    record = read_record(store, index)
    store.put(record_key(index), encode(Record(dataclasses.replace(record.metadata, **changes), record.rows)))
