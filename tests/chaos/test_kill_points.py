"""A learner that dies, or sleeps through a takeover, at each place between two things it makes durable.

Whatever the place, the next learner ends with the parameters of an undisturbed run, and the audit is ok.
"""

import random
from functools import cache

import pytest
from support.audited import STEPS, end, start, turn
from support.phases import CHECKPOINT, END, STEP, watch
from support.protocol import BASE, FakeUpdater, config, learner

from schemas import keys
from schemas.errors import Fenced
from storage import audit
from storage.memory import MemoryStore
from trainer import recovery
from trainer.recovery import newest_checkpoint

CASES = [(phase, nth) for phase in STEP for nth in (2, STEPS)]
CASES += [(phase, nth) for phase in CHECKPOINT for nth in (1, STEPS // 2)]
CASES += [(phase, 1) for phase in END]


class Killed(BaseException):
    """kill -9: nothing that runs in the learner gets to see it."""


class Trap:
    """Does something the nth time that a phase is entered, and never again."""

    def __init__(self, phase, nth, spring):
        self.phase, self.left, self.spring = phase, nth, spring

    def __call__(self, phase):
        if phase == self.phase and self.left:
            self.left -= 1
            if not self.left:
                self.spring()


def die():
    raise Killed


@cache
def undisturbed():
    """The parameters of the run that nothing happens to."""
    made, workers = start(MemoryStore("calm"))
    turn(made, workers, STEPS)
    end(made, workers)
    return made.updater.params


def replayed(store):
    """The parameters that retraining by the ledger alone ends with."""
    made = learner(store, config(steps=STEPS), "replay")
    made.policy.admit(made.progress)
    recovery.replay(store, BASE, made.progress, made.bounds, made._replay_step)
    return made.updater.params


def assert_whole(store, last):
    """The run has come to its end, everything in it is accounted for, and replay gives what was kept."""
    found = audit.verify(store, "test")
    assert found.ok, found.sentence()
    assert found.total("unaccounted") == found.total("trained_twice") == 0
    assert (last.progress.step, last.progress.closed) == (STEPS, True)
    assert last.updater.params == replayed(store)
    checkpoint = newest_checkpoint(store, BASE)
    assert checkpoint is not None and checkpoint.step == STEPS
    assert store.get(f"{checkpoint.prefix}/params").data.decode() == last.updater.params
    assert store.head(keys.policy_manifest(BASE, STEPS)) is not None


@pytest.mark.parametrize(("phase", "nth"), CASES)
def test_a_learner_that_dies_there_is_replaced_without_a_trace(monkeypatch, phase, nth):
    store = MemoryStore("chaos")
    trap = Trap(phase, nth, die)
    watch(monkeypatch.setattr, FakeUpdater, trap)
    made, workers = start(store)
    with pytest.raises(Killed):
        turn(made, workers, STEPS)
        end(made, workers)
    found = audit.verify(store, "test")
    assert found.ok, found.sentence()
    second = learner(store, config(steps=STEPS), "L2")
    second.recover()
    turn(second, workers, STEPS)
    end(second, workers)
    assert_whole(store, second)
    assert second.updater.params == undisturbed()


@pytest.mark.parametrize("phase", [*STEP, *CHECKPOINT])
def test_a_learner_that_sleeps_there_wakes_up_fenced(monkeypatch, phase):
    store = MemoryStore("chaos")
    second = learner(store, config(steps=STEPS), "L2")

    def take_over():
        second.recover()
        turn(second, workers, second.progress.step + 1)

    watch(monkeypatch.setattr, FakeUpdater, Trap(phase, 1 if phase in CHECKPOINT else 2, take_over))
    first, workers = start(store)
    with pytest.raises(Fenced, match="L2"):
        turn(first, workers, STEPS)
    assert first.progress.step <= second.progress.step
    turn(second, workers, STEPS)
    end(second, workers)
    assert_whole(store, second)


@pytest.mark.parametrize("seed", range(6))
def test_of_two_learners_on_one_run_exactly_one_goes_on(seed):
    draw, store = random.Random(seed), MemoryStore("chaos")
    first, workers = start(store)
    turn(first, workers, draw.randrange(STEPS - 1))
    second = learner(store, config(steps=STEPS), "L2")
    second.recover()
    working = {"L1": first, "L2": second}
    while len(working) == 2:
        for worker in workers:
            worker.work(1)
        name = draw.choice([n for n, made in working.items() if made.progress.step < STEPS])
        try:
            working[name].tick()
        except Fenced as error:
            del working[name]
            assert min(working) in str(error), "the sentence names who took over"
    (last,) = working.values()
    turn(last, workers, STEPS)
    end(last, workers)
    assert_whole(store, last)
