"""The wheel around fakes: exactly one disposition each, replay equal to the bit, fencing, closing."""

import collections
import threading

import pytest
from support.protocol import BASE, NUMERICS, FakeWorker, config, learner, trajectory

from schemas import keys
from schemas.errors import Fenced, RunStopped
from schemas.ledger import Disposition, Kind
from schemas.manifest import Probe
from schemas.trajectory import Status
from storage import control
from storage.ledger import read_entry
from storage.memory import MemoryStore
from storage.shards import END_MARKER, WriterEnded
from trainer.recovery import newest_checkpoint


def drive(made, workers, steps):
    """Turn the wheel until the learner has made so many steps in all."""
    for _ in range(1000):
        if made.progress.step >= steps:
            return
        for worker in workers:
            worker.work(1)
        made.tick()
    raise AssertionError(f"stuck at step {made.progress.step}")


def finish(made, workers):
    for worker in workers:
        worker.leave()
    assert made.close() == "finished"


def records(store):
    index, found = 0, []
    while (entry := read_entry(store, BASE, index)) is not None:
        found.append(entry.record)
        index += 1
    return found


def dispositions(store):
    return collections.Counter(
        r.disposition for record in records(store) for r in record.rows if r.kind == Kind.TRAJECTORY
    )


def test_a_run_trains_every_row_once_and_closes():
    store, run = MemoryStore(), config(steps=5)
    made = learner(store, run)
    made.recover()
    workers = [FakeWorker(store, run, "w0"), FakeWorker(store, run, "w1")]
    drive(made, workers, 5)
    finish(made, workers)
    found = records(store)
    assert [r.metadata.kind for r in found] == ["step"] * 5 + ["close"]
    assert [r.metadata.version for r in found] == [0, 1, 2, 3, 4, 5]
    trained = [(r.group, r.sample) for record in found for r in record.trained()]
    assert len(trained) == len(set(trained)) == 5 * 4
    assert dispositions(store) == {Disposition.TRAINED: 20}
    assert control.read_window(store, BASE)[0].closed
    assert all(store.get(keys.shard(BASE, w.name, w.writer.next_seq)).data == END_MARKER for w in workers)


def test_batches_are_ordered_by_group_and_sample_not_by_arrival():
    store, run = MemoryStore(), config(steps=1)
    made = learner(store, run)
    made.recover()
    worker = FakeWorker(store, run)
    for group in (1, 0):
        control.create_claim(store, BASE, group, "w0", 0)
        worker.write(group, 0)
    assert made.tick()
    assert [(r.group, r.sample) for r in records(store)[0].trained()] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("killed_after", [0, 1, 2, 3])
def test_a_new_learner_replays_to_the_same_parameters(killed_after):
    run = config(steps=4)
    whole, cut = MemoryStore(), MemoryStore()
    for store in (whole, cut):
        made = learner(store, run)
        made.recover()
        worker = FakeWorker(store, run)
        if store is cut:
            drive(made, [worker], killed_after)
            made = learner(store, run, "L2")
            made.recover()
            assert made.progress.step == killed_after
        drive(made, [worker], 4)
        finish(made, [worker])
    one, other = newest_checkpoint(whole, BASE), newest_checkpoint(cut, BASE)
    assert (one.params_sha256, one.metrics) == (other.params_sha256, other.metrics)
    assert dispositions(whole) == dispositions(cut)


def test_a_checkpoint_carries_the_means_of_what_was_trained():
    store, run = MemoryStore(), config(steps=4)
    made = learner(store, run)
    made.recover()
    worker = FakeWorker(store, run)
    drive(made, [worker], 4)
    finish(made, [worker])
    trained = [row for record in records(store) for row in record.trained()]
    steps = [e for e in made.events if e["event"] == "step"]
    found = newest_checkpoint(store, BASE).metrics
    assert found["rows"] == len(trained) == 16
    assert found["staleness"] == pytest.approx(sum(r.staleness for r in trained) / 16)
    for name in ("mismatch_kl", "reward"):
        assert found[name] == pytest.approx(sum(e[name] * e["rows"] for e in steps) / 16)


def test_a_learner_that_dies_between_record_and_update_replays_the_record():
    store, run = MemoryStore(), config()
    made = learner(store, run)
    made.recover()
    worker = FakeWorker(store, run)
    drive(made, [worker], 1)

    def die(*_):
        raise KeyboardInterrupt

    made.updater.update = die
    with pytest.raises(KeyboardInterrupt):
        drive(made, [worker], 2)
    second = learner(store, run, "L2")
    assert second.recover() == 2
    assert second.progress.step == 2 and second.updater.updates == 2
    assert second.published.version == 2
    drive(second, [worker], 4)
    finish(second, [worker])
    assert dispositions(store) == {Disposition.TRAINED: 16}


def test_of_two_learners_one_goes_on_and_the_other_is_fenced():
    store, run = MemoryStore(), config()
    first, second = learner(store, run, "L1"), learner(store, run, "L2")
    first.recover()
    second.recover()
    worker = FakeWorker(store, run)
    worker.work()
    assert second.tick()
    with pytest.raises(Fenced, match="L2"):
        for _ in range(5):
            first.tick()
    assert records(store)[0].metadata.learner == "L2"
    assert second.progress.step >= 1


def test_a_waiting_learner_notices_that_another_has_made_the_step():
    """Groups that its successor ended may never become whole for it, so it would wait for ever."""
    store, run, now = MemoryStore(), config(rollout={"lease_seconds": 20.0}), [0.0]
    zombie, heir = learner(store, run, "L1", clock=lambda: now[0]), learner(store, run, "L2")
    zombie.recover()
    heir.recover()
    FakeWorker(store, run).work()
    assert heir.tick()
    for shard in store.list(f"{BASE}/trajectories/"):
        store.put(shard, b"rotten")
    asked, head = [], store.head
    store.head = lambda key: asked.append(key) or head(key)
    for now[0] in (1.0, 2.0, 4.9):
        assert not zombie.tick()
    assert len(asked) <= 1, "a few times a lease, not at every turn"
    now[0] = 6.0
    with pytest.raises(Fenced, match="learner L2, which has taken over"):
        zombie.tick()
    assert [r.metadata.learner for r in records(store)] == ["L2"]


def test_a_learner_that_waits_for_workers_to_leave_notices_that_another_has_closed():
    """The run has been closed and goes on with more steps: there are always workers that have not left."""
    store, run, now = MemoryStore(), config(steps=1, groups_per_batch=1, rollout={"lease_seconds": 20.0}), [0.0]
    worker = FakeWorker(store, run)

    def wait(_):
        now[0] += 1.0
        assert now[0] < 60, "it waits for ever"
        if not heir.finished():
            finish(heir, [worker])
        worker.state = worker.state.model_copy(update={"state": "running", "beat": worker.state.beat + 1})
        control.beat(store, BASE, worker.state)

    zombie, heir = learner(store, run, "L1", clock=lambda: now[0], sleep=wait), learner(store, run, "L2")
    zombie.recover()
    drive(zombie, [worker], 1)
    heir.recover()
    with pytest.raises(Fenced, match="learner L2, which has taken over"):
        zombie.close()
    assert [r.metadata.kind for r in records(store)] == ["step", "close"]


def test_a_learner_that_waits_long_looks_less_often():
    store, run, now, pauses = MemoryStore(), config(idle_seconds=10.0, rollout={"poll_seconds": 0.5}), [0.0], []

    def wait(seconds):
        assert seconds <= max(0.02, now[0] / 4), "a step would be found late"
        pauses.append(seconds)
        now[0] += seconds

    with pytest.raises(RunStopped, match="nothing could be trained for 10 s"):
        learner(store, run, clock=lambda: now[0], sleep=wait).run()
    assert pauses == sorted(pauses) and pauses[0] == 0.02 and pauses[-1] == 0.5
    assert len(pauses) < 45


def test_a_fenced_learner_does_not_move_the_window_back():
    store, run = MemoryStore(), config(steps=6)
    zombie, heir = learner(store, run, "L1"), learner(store, run, "L2")
    zombie.recover()
    heir.recover()
    worker = FakeWorker(store, run)
    drive(heir, [worker], 3)
    before = control.read_window(store, BASE)[0]
    with pytest.raises(Fenced):
        zombie.window.move(zombie.progress, 0, force=True)
        zombie.progress.step = 1
        zombie.window.move(zombie.progress, 1, force=True)
    assert control.read_window(store, BASE)[0] == before


def test_failed_attempts_are_failed_and_survivors_train():
    store, run = MemoryStore(), config(steps=1, group_size=3, groups_per_batch=1)
    made = learner(store, run)
    made.recover()
    worker = FakeWorker(store, run)
    control.create_claim(store, BASE, 0, "w0", 0)
    for attempt in range(3):
        worker.writer.add(
            trajectory(0, 2, attempt=attempt, worker="w0", status=Status.ENVIRONMENT_ERROR, detail="boom")
        )
    worker.writer.add(trajectory(0, 0, worker="w0"))
    worker.writer.seal()
    assert not made.tick()
    worker.writer.add(trajectory(0, 1, worker="w0"))
    worker.writer.seal()
    assert made.tick()
    assert dispositions(store) == {Disposition.TRAINED: 2, Disposition.FAILED: 3}


@pytest.mark.parametrize("status", [Status.ENVIRONMENT_ERROR, Status.MAX_TOKENS])
def test_an_episode_in_which_nothing_was_sampled_is_failed_and_harms_nobody(status):
    """Its first call failed, or its prompt left no room: there are no tokens and no versions."""
    store, run = MemoryStore(), config(steps=1, group_size=3, groups_per_batch=1)
    made, worker = learner(store, run), FakeWorker(store, run)
    made.recover()
    control.create_claim(store, BASE, 0, "w0", 0)
    nothing = {"tokens": (), "mask": (), "logprobs": (), "version_starts": (), "versions": (), "turns": ()}
    for attempt in range(3):
        worker.writer.add(trajectory(0, 2, attempt=attempt, worker="w0", status=status, **nothing))
    for sample in range(2):
        worker.writer.add(trajectory(0, sample, worker="w0"))
    worker.writer.seal()
    assert made.tick()
    finish(made, [worker])
    assert dispositions(store) == {Disposition.TRAINED: 2, Disposition.FAILED: 3}


def test_a_group_with_one_survivor_is_incomplete_and_the_run_goes_on():
    store, run = MemoryStore(), config(steps=2, groups_per_batch=1)
    made = learner(store, run)
    made.recover()
    worker = FakeWorker(store, run)
    control.create_claim(store, BASE, 0, "w0", 0)
    for attempt in range(3):
        worker.writer.add(trajectory(0, 1, attempt=attempt, worker="w0", status=Status.TIMEOUT))
    worker.writer.add(trajectory(0, 0, worker="w0"))
    worker.writer.seal()
    drive(made, [worker], 2)
    finish(made, [worker])
    assert dispositions(store) == {Disposition.TRAINED: 4, Disposition.FAILED: 3, Disposition.INCOMPLETE: 1}


def test_the_first_row_of_a_sample_wins_and_late_rows_are_recorded():
    store, run = MemoryStore(), config(steps=3, groups_per_batch=1)
    made = learner(store, run)
    made.recover()
    worker, other = FakeWorker(store, run, "w0"), FakeWorker(store, run, "w1")
    worker.work(1)
    other.write(0, 0)
    made.tick()
    other.write(0, 0, attempt=3)
    drive(made, [worker], 3)
    finish(made, [worker, other])
    assert dispositions(store) == {Disposition.TRAINED: 6, Disposition.DUPLICATE: 4}


def test_zero_advantage_groups_end_without_being_trained_where_they_are_filtered():
    store, run = MemoryStore(), config(steps=2, groups_per_batch=1, loss={"filter_zero_advantage": True})
    made = learner(store, run)
    made.recover()
    worker = FakeWorker(store, run)
    control.create_claim(store, BASE, 0, "w0", 0)
    worker.write(0, 0, reward=1.0)
    drive(made, [worker], 2)
    assert dispositions(store) == {Disposition.ZERO_ADVANTAGE: 2, Disposition.TRAINED: 4}


def test_an_unreadable_shard_is_recorded_and_its_samples_may_be_made_again():
    store, run = MemoryStore(), config(steps=2, groups_per_batch=1)
    made = learner(store, run)
    made.recover()
    worker = FakeWorker(store, run)
    control.create_claim(store, BASE, 0, "w0", 0)
    store.create(keys.shard(BASE, "w0", 0), b"not a shard")
    worker.writer.next_seq = 1
    worker.write(0, 0)
    drive(made, [worker], 2)
    finish(made, [worker])
    shards = [r for record in records(store) for r in record.rows if r.kind == Kind.SHARD]
    assert [(r.worker, r.seq) for r in shards] == [("w0", 0)] and "damaged" in shards[0].reason
    again = learner(store, run, "L2")
    again.recover()
    assert again.finished()


def test_rows_left_at_the_end_are_unused_and_a_late_writer_is_stopped():
    store, run = MemoryStore(), config(steps=1, groups_per_batch=1, max_staleness=0)
    made = learner(store, run)
    made.recover()
    worker = FakeWorker(store, run)
    drive(made, [worker], 1)
    worker.write(5, 0)
    finish(made, [worker])
    assert dispositions(store) == {Disposition.TRAINED: 2, Disposition.UNUSED: 2}
    with pytest.raises(WriterEnded):
        worker.write(6, 0)


def test_raising_the_steps_continues_a_closed_run():
    store = MemoryStore()
    short, long = config(steps=2), config(steps=4)
    made, worker = learner(store, short), FakeWorker(store, short)
    made.recover()
    drive(made, [worker], 2)
    finish(made, [worker])
    made, worker = learner(store, long, "L2"), FakeWorker(store, long, "w1")
    made.recover()
    assert not control.read_window(store, BASE)[0].closed
    drive(made, [worker], 4)
    finish(made, [worker])
    assert [r.metadata.kind for r in records(store)] == ["step", "step", "close", "step", "step", "close"]
    assert [r.metadata.step for r in records(store)] == [0, 1, 2, 2, 3, 4]


def test_staleness_is_bounded_and_a_stale_group_is_recorded_not_trained():
    store, run = MemoryStore(), config(steps=4, groups_per_batch=1, max_staleness=1)
    made = learner(store, run)
    made.recover()
    worker = FakeWorker(store, run)
    drive(made, [worker], 2)
    group = made.progress.open_groups()[0]
    control.create_claim(store, BASE, group, "w0", 0)
    worker.write(group, 0)
    drive(made, [worker], 4)
    finish(made, [worker])
    assert dispositions(store)[Disposition.STALE] == 2
    assert all(r.staleness <= 1 for record in records(store) for r in record.trained())


def test_a_dead_owner_whose_group_was_taken_over_too_often_ends_it():
    store, run = MemoryStore(), config(steps=1, groups_per_batch=1, rollout={"max_takeovers": 1})
    made = learner(store, run)
    made.recover()
    worker, other = FakeWorker(store, run, "w0"), FakeWorker(store, run, "w1")
    control.create_claim(store, BASE, 0, "w0", 0)
    worker.writer.add(trajectory(0, 0, worker="w0"))
    worker.writer.seal()
    claim, generation = control.read_claim(store, BASE, 0)
    assert control.take_over(store, BASE, claim, generation, "w1").owners == ("w0", "w1")
    assert control.take_over(store, BASE, claim, generation, "w9") is None
    other.leave()
    made.watch._next = 0.0
    deadline = threading.Event()
    for _ in range(100):
        if made.tick():
            break
        deadline.wait(0.01)
    assert dispositions(store) == {Disposition.INCOMPLETE: 1}


def test_many_steps_without_anything_to_train_stop_the_run_with_the_cause():
    store, run = MemoryStore(), config(steps=50, groups_per_batch=1, max_empty_steps=3)
    made = learner(store, run)
    made.recover()
    worker = FakeWorker(store, run)
    with pytest.raises(RunStopped, match="boom"):
        for _ in range(100):
            for group in made.progress.open_groups():
                if control.create_claim(store, BASE, group, "w0", 0):
                    for attempt in range(3):
                        worker.write(group, 0, attempt=attempt, status=Status.ENVIRONMENT_ERROR, detail="boom")
            made.tick()


def test_a_changed_row_stops_replay_and_names_the_shard():
    store, run = MemoryStore(), config(steps=4, checkpoint_every=100)
    made, worker = learner(store, run), FakeWorker(store, run)
    made.recover()
    drive(made, [worker], 2)
    key = keys.shard(BASE, "w0", 0)
    store.delete(key)
    worker.writer.next_seq = 0
    worker.write(0, 0, reward=0.5)
    with pytest.raises(RunStopped, match="w0/00000000"):
        learner(store, run, "L2").recover()


def test_the_window_never_holds_more_than_the_bound():
    store, run = MemoryStore(), config(steps=6, max_staleness=2)
    made, worker = learner(store, run), FakeWorker(store, run)
    made.recover()
    for step in range(1, 7):
        drive(made, [worker], step)
        window = control.read_window(store, BASE)[0]
        open_groups = [g for g in range(window.low, window.limit) if g not in window.ended]
        assert len(open_groups) <= 3 * run.rl.groups_per_batch
        assert len(open_groups) <= (6 - step) * run.rl.groups_per_batch


def test_replay_that_differs_stops_here_and_is_measured_by_the_probe_elsewhere():
    store, run = MemoryStore(), config(steps=4, checkpoint_every=100)
    made, worker = learner(store, run), FakeWorker(store, run)
    made.recover()
    drive(made, [worker], 2)
    elsewhere = NUMERICS.model_copy(update={"cores": 2})
    for environment, gap, sentence in ((NUMERICS, 0.0, "gave other weights"), (elsewhere, 0.5, "off its probe")):
        other = learner(store, run, "L2")
        other.updater.params, other.updater.environment = "another start", environment
        other.updater.probe = lambda gap=gap: Probe(tokens=(1, 2), logprobs=(-1.0 + gap,))
        with pytest.raises(RunStopped, match=sentence):
            other.recover()
    other = learner(store, run, "L3")
    other.updater.params, other.updater.environment = "another start", elsewhere
    assert other.recover() == 2
