"""An updater in several processes: whoever follows makes the calls of the first, from what the store holds."""

import json

import pytest
from support.protocol import BASE, FakeUpdater, FakeWorker, config, learner, trajectory

from schemas import keys
from schemas.errors import LogDamaged, RunStopped
from storage.memory import MemoryStore
from trainer.assembler import Row
from trainer.follower import Follower
from trainer.shared_updater import Leader, SharedUpdater


class Heard(list):
    """Orders, as text on their way."""

    def append(self, order):
        super().append(json.dumps(order))

    def follow(self, own, store):
        """Obey them all, and go home."""
        left = iter([*self, json.dumps({"call": "end"})])
        Follower(own, store, BASE, 60.0).follow(lambda: json.loads(next(left)))
        return own

    def calls(self):
        return [json.loads(order)["call"] for order in self]


def shared(store, heard):
    made = FakeUpdater(store)
    return made, SharedUpdater(made, Leader(heard.append, clock=lambda: 0.0))


def led(store, run, heard, name="L1"):
    made = learner(store, run, name)
    own, made.updater = shared(store, heard)
    made.recover()
    return made, own


def drive(made, worker, steps):
    while made.progress.step < steps:
        worker.work(1)
        made.tick()


def test_who_follows_a_learner_ends_where_it_ends():
    store, run, heard = MemoryStore(), config(steps=4), Heard()
    made, own = led(store, run, heard)
    drive(made, FakeWorker(store, run), 3)
    other = heard.follow(FakeUpdater(store), store)
    assert other.updates == own.updates == 3
    assert other.params_digest() == own.params_digest() != FakeUpdater(store).params_digest()
    assert {"probe", "params", "update", "save", "params_digest"} <= set(heard.calls())

    again = Heard()
    second, own = led(store, run, again, "L2")
    drive(second, FakeWorker(store, run, "w1"), 4)
    assert again.calls()[0] == "load" and again.calls().count("update") == 2
    other = again.follow(FakeUpdater(store), store)
    assert other.params_digest() == own.params_digest()


def stored(store, count):
    worker = FakeWorker(store, config())
    worker.write(0, 0)
    digests = [r.digest for r in rows_of(store, worker)]
    assert len(digests) >= count
    return worker, rows_of(store, worker)[:count]


def rows_of(store, worker):
    from schemas.trajectory import row_digest
    from storage.shards import decode_shard

    _, found = decode_shard(store.get(keys.shard(BASE, worker.name, 0)).data)
    return tuple(Row((worker.name, 0, i), t, row_digest(t)) for i, t in enumerate(found))


def test_rows_that_are_asked_for_before_the_record_and_after_it_are_read_once():
    store, heard = MemoryStore(), Heard()
    _, rows = stored(store, 2)
    own, made = shared(store, heard)
    made.reference_gap(rows)
    made.update(rows, (0.1, -1 / 3))
    read, get = [], store.get
    store.get = lambda key: read.append(key) or get(key)
    assert heard.follow(FakeUpdater(store), store).params_digest() == own.params_digest()
    assert len(read) == 1


def test_a_row_that_is_not_the_first_process_s_is_no_row_to_train():
    store, heard = MemoryStore(), Heard()
    _, rows = stored(store, 2)
    _, made = shared(store, heard)
    made.update((Row(rows[0].place, trajectory(8, 1), "another"),), (1.0,))
    with pytest.raises(LogDamaged, match=r"row 0 of the shard .* is not the one"):
        heard.follow(FakeUpdater(store), store)


def test_an_order_of_another_release_is_a_sentence():
    heard = Heard()
    heard.append({"call": "dance"})
    with pytest.raises(RunStopped, match="asks for `dance`: run one release"):
        heard.follow(FakeUpdater(MemoryStore()), MemoryStore())


def test_a_first_process_that_waits_says_so_now_and_then():
    heard, now = Heard(), [0.0]
    leader = Leader(heard.append, clock=lambda: now[0])
    for now[0] in (0.5, 1.0, 1.5, 2.0):
        assert not leader.turn()
    assert heard.calls() == ["wait", "wait"]
