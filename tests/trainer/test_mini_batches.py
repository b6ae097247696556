"""Several updates on a batch: who is in which, what they are measured against, and how stale what they train may be."""

import dataclasses

import jax
import numpy as np
import pytest
from support.audited import start
from support.protocol import BASE, config, trajectory
from support.tiny import TINY, lively
from support.turning import drive, finish, records

from models.pure import flatten, init_params
from storage import audit
from storage.memory import MemoryStore
from trainer.assembler import Row
from trainer.jax_updater import JaxUpdater
from trainer.mini_batches import deal, together

SMALL = dataclasses.replace(TINY, num_hidden_layers=1)
ROWS = tuple(Row(("w", 0, i), trajectory(i // 2, i % 2), str(i)) for i in range(4))
ADVANTAGES = (1.0, -1.0, 0.5, -0.5)


def updater(**rl):
    run = config(rollout={"max_length": 8}, optimizer={"learning_rate": 0.05}, max_staleness=3, **rl)
    return JaxUpdater(MemoryStore(), BASE, run, SMALL, jax.tree.map(np.asarray, lively(init_params(SMALL, 0))))


def test_groups_are_dealt_whole_and_in_order():
    rows = [Row(("w", 0, g), trajectory(g, s), "") for g in range(5) for s in range(2)]
    found = deal(rows, [float(i) for i in range(10)], 3)
    assert [[r.trajectory.group for r in one] for one, _ in found] == [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4]]
    assert [a for _, own in found for a in own] == list(range(10))
    assert len(deal(rows[:4], [0.0] * 4, 3)) == 2


def test_figures_of_a_step_are_means_and_greatest_values_of_its_updates():
    assert together([{"loss": 1.0, "ratio_max": 3.0}, {"loss": 2.0, "ratio_max": 2.0}]) == {
        "loss": 1.5,
        "ratio_max": 3.0,
    }


def test_epochs_are_updates_one_after_the_other():
    twice, one = updater(epochs=2), updater()
    twice.update(ROWS, ADVANTAGES)
    for _ in range(2):
        one.update(ROWS, ADVANTAGES)
    assert twice.params_digest() == one.params_digest()
    halves = updater(mini_batches=2)
    halves.update(ROWS, ADVANTAGES)
    by_hand = updater()
    by_hand.update(ROWS[:2], ADVANTAGES[:2])
    by_hand.update(ROWS[2:], ADVANTAGES[2:])
    for name, value in flatten(halves.params).items():
        np.testing.assert_allclose(value, flatten(by_hand.params)[name], atol=1e-5)


def test_decoupled_ratios_are_measured_from_the_policy_at_the_steps_start():
    """The second update clips what the first has moved: measured from itself, its ratio would always be 1."""
    made = updater(epochs=2, loss={"correction": "truncated", "clip_low": 1e-4, "clip_high": 1e-4})
    assert made.update(ROWS, ADVANTAGES)["clip_fraction"] > 0
    alone = updater(loss={"correction": "truncated", "clip_low": 1e-4, "clip_high": 1e-4})
    assert alone.update(ROWS, ADVANTAGES)["clip_fraction"] == 0


@pytest.mark.parametrize(("updates", "bound", "oldest"), [({"epochs": 2}, 3, 1), ({"mini_batches": 2}, 2, 0)])
def test_staleness_counts_the_updates_of_a_step(updates, bound, oldest):
    """Two updates a step: what was sampled k steps before is 2k + 1 updates old at the step's last one."""
    store = MemoryStore()
    made, workers = start(store, steps=5, max_staleness=bound, **updates)
    drive(made, workers, 5)
    finish(made, workers)
    trained = [r for record in records(store) for r in record.trained()]
    assert {r.staleness for r in trained} <= {2 * k + 1 for k in range(oldest + 1)}
    assert max(r.staleness for r in trained) <= bound
    assert [r.metadata.updates for r in records(store)] == [2] * 5 + [0]
    found = audit.verify(store, "test")
    assert found.ok and found.stages[0].max_staleness == max(r.staleness for r in trained)
