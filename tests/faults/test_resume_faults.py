"""Faults that others' users reported of resuming: prompts skipped, buffers lost, batches trained again.

Each test names a public report. `docs/faults.md` is the whole table.
"""

import pytest
from support.protocol import BASE, FakeWorker, config, learner, spec, trajectory
from support.simulation import Simulation
from support.turning import drive, finish, records, trained

from rollout.claims import ClaimBoard
from schemas import keys, seeds
from schemas.ledger import Disposition, Kind
from storage import audit, control, ledger
from storage.memory import MemoryStore
from trainer.recovery import newest_checkpoint

GIVEN_UP = {Disposition.INCOMPLETE, Disposition.ZERO_ADVANTAGE}


class Killed(BaseException):
    """kill -9: nothing that runs in the learner gets to see it."""


def begin(store, run, name="L1"):
    made = learner(store, run, name)
    made.recover()
    return made


def test_kills_skip_no_prompt_and_favour_none():
    """A data cursor that ran ahead skipped 675 of 736 prompts, mostly those with long answers (NVIDIA-NeMo/RL#3599)."""
    killed = 0
    for seed in range(20, 24):
        simulation = Simulation(seed)
        counts = simulation.run()
        killed += counts["L killed"] + counts["w killed"]
        groups = [r for record in records(simulation.store) for r in record.rows if r.kind == Kind.GROUP]
        assert sorted(r.group for r in groups) == list(range(len(groups)))
        assert {r.disposition for r in groups} <= {Disposition.TRAINED} | GIVEN_UP
    assert killed >= 20


def test_what_was_sampled_ahead_survives_a_kill():
    """Oversampled rows in a buffer were lost, and the data counted as exhausted (OpenRLHF/OpenRLHF#1322)."""
    store, run = MemoryStore(), config(steps=4, max_staleness=3, checkpoint_every=1)
    made, worker = begin(store, run), FakeWorker(store, run)
    assert worker.work() == list(range(8))
    assert made.tick()
    again = begin(store, run, "L2")
    assert worker.work() == []
    drive(again, [worker], 4)
    assert [i.split("-")[0] for i in trained(store)] == [str(group) for group in range(8) for _ in range(2)]


def test_what_was_in_flight_is_played_again_to_the_last_sample():
    """Samples in flight and in the queue were lost on resume (verl-project/verl#4199)."""
    store, run, now = MemoryStore(), config(max_staleness=3), [0.0]
    begin(store, run)
    window = control.read_window(store, BASE)[0]
    dead = FakeWorker(store, run, "dead")
    cut = [control.create_claim(store, BASE, group, "dead", 0) for group in range(8)]
    dead.writer.add(trajectory(2, 1, worker="dead"))
    dead.writer.seal()
    heir = ClaimBoard(store, BASE, "heir", run, clock=lambda: now[0])
    found = [heir.next(window)]
    for _ in range(9):
        heir.watch(window, set())
        now[0] += run.rollout.lease_seconds / 4
    while (assignment := heir.next(window)) is not None:
        found.append(assignment)
    missing = {(a.group, sample) for a in found if a for sample in a.samples}
    assert all(cut) and missing == {(g, s) for g in range(8) for s in range(2)} - {(2, 1)}


def test_a_slow_group_does_not_hold_back_the_place_to_resume_from():
    """A group dropped as stale pinned the cursor, so that later prompts were trained twice (huggingface/trl#7274)."""
    store, run = MemoryStore("test"), config(steps=75, max_staleness=4, checkpoint_every=5)
    store.create(keys.spec(BASE), spec(run).to_bytes())
    made, worker = begin(store, run), FakeWorker(store, run)
    late = control.create_claim(store, BASE, 3, worker.name, 0)
    for step in range(1, 76):
        if late and step == 4:
            drive_until_waiting(made, worker)
            worker.write(3, 0)
        drive(made, [worker], step)
        if step % 7 == 0:
            made = begin(store, run, f"L{step}")
    finish(made, [worker])
    found = trained(store)
    assert len(found) == len(set(found)) == 75 * 2 * 2
    assert {int(i.split("-")[0]) for i in found} == set(range(150))
    assert audit.verify(store, "test").ok


def drive_until_waiting(made, worker):
    while worker.work(1) or made.tick():
        pass


def test_resuming_plays_nothing_that_was_trained_or_sealed():
    """A resume replayed the data through live inference (huggingface/trl#5911)."""
    store, run = MemoryStore(), config(steps=6, max_staleness=2)
    made, worker = begin(store, run), FakeWorker(store, run)
    drive(made, [worker], 3)
    worker.work()
    done = {int(key.rsplit("/", 1)[1].removesuffix(".json")) for key in store.list(f"{BASE}/claims/")}
    begin(store, run, "L2")
    window = control.read_window(store, BASE)[0]
    board, asked = ClaimBoard(store, BASE, "new", run), set()
    while (assignment := board.next(window)) is not None:
        asked.add(assignment.group)
    assert not asked & done and len(done) == 12


@pytest.mark.parametrize("every", [1, 3])
def test_steps_are_numbered_without_gap_or_repeat_whenever_one_resumes(every):
    """The step after a resume was counted twice (verl-project/verl#7933)."""
    store, run = MemoryStore(), config(steps=6, checkpoint_every=every)
    worker = FakeWorker(store, run)
    for step in range(7):
        made = begin(store, run, f"L{step}")
        assert made.progress.step == step == made.progress.version
        drive(made, [worker], min(step + 1, 6))
    finish(made, [worker])
    assert [r.metadata.step for r in records(store)] == [0, 1, 2, 3, 4, 5, 6]
    assert made.updater.updates <= every


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5])
def test_the_order_of_tasks_is_that_of_a_run_without_a_break(cut):
    """Data changed order after a resume, and a loader ended at an epoch's end (verl-project/verl#3457)."""
    tasks, orders = 5, []
    for store, breaks in ((MemoryStore(), ()), (MemoryStore(), (cut,))):
        run = config(steps=6)
        made, worker = begin(store, run), FakeWorker(store, run)
        for step in range(1, 7):
            drive(made, [worker], step)
            if step in breaks:
                made = begin(store, run, "L2")
        orders.append([seeds.task_index(7, tasks, int(i.split("-")[0])) for i in trained(store)[::2]])
    assert orders[0] == orders[1]
    assert sorted(orders[0][:5]) == sorted(orders[0][5:10]) == list(range(tasks))


@pytest.mark.parametrize("filtered", [False, True])
def test_the_batch_chosen_at_the_kill_is_the_next_one(monkeypatch, filtered):
    """A sampler that kept no state discarded the next batch on resume (NVIDIA-NeMo/RL#3480)."""
    store, run = (
        MemoryStore(),
        config(steps=3, max_staleness=2, checkpoint_every=1, loss={"filter_zero_advantage": filtered}),
    )
    made, worker = begin(store, run), FakeWorker(store, run)
    worker.work()
    drive(made, [worker], 1)
    worker.work()
    chosen = []

    def die(_store, _base, _index, record):
        chosen.extend(r.trajectory for r in record.trained())
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "append", die)
        with pytest.raises(Killed):
            made.tick()
    again = begin(store, run, "L2")
    assert again.tick()
    assert chosen and trained(store)[4:8] == chosen


def test_files_of_a_checkpoint_without_its_manifest_are_no_checkpoint():
    """An incomplete checkpoint was picked to resume or to evaluate from (PrimeIntellect-ai/prime-rl#1825, #1584)."""
    store, run = MemoryStore(), config(steps=4, checkpoint_every=2)
    made, worker = begin(store, run), FakeWorker(store, run)
    drive(made, [worker], 3)
    made.updater.save(3, "torn")
    assert newest_checkpoint(store, BASE).step == 2
    again = begin(store, run, "L2")
    assert again.last_checkpoint == 2 and again.updater.params == made.updater.params
