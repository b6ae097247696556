"""PPO's critic: what it learns, what does not change it, and that a snapshot and a replay have it too."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.audited import start
from support.protocol import BASE, config, trajectory
from support.tiny import TINY, lively
from support.turning import drive, finish, records

from models.pure import flatten, init_params
from schemas.manifest import CheckpointManifest
from storage import audit
from storage.memory import MemoryStore
from trainer.assembler import Row
from trainer.critic import value_loss
from trainer.jax_updater import JaxUpdater

SMALL = dataclasses.replace(TINY, num_hidden_layers=1)
REWARDS = (1.0, 0.0, 1.0, 0.0)


def row(number):
    """A trajectory whose first token tells whether it is rewarded; its middle was fed."""
    size = 5 + number
    tokens = (1 + number % 2, *range(2, size + 1))
    mask = tuple(i in (1, 2) or i >= size - 1 for i in range(size))
    made = trajectory(number, 0, tokens=tokens, mask=mask, logprobs=tuple(-1.0 * m for m in mask))
    return Row(("w", 0, number), made, str(number))


ROWS = tuple(row(i) for i in range(4))


def updater(store=None, **rl):
    loss = rl.pop("loss", {})
    settings = {"group_size": 1, "groups_per_batch": 4, "optimizer": {"learning_rate": 0.01, "eps": 1e-3}} | rl
    run = config(rollout={"max_length": 10}, loss={"algorithm": "ppo"} | loss, **settings)
    return JaxUpdater(store or MemoryStore(), BASE, run, SMALL, start_params())


def start_params():
    return jax.tree.map(np.asarray, lively(init_params(SMALL, 0)))


def test_value_clipping_is_the_greater_of_two_squares_and_stops_its_gradient():
    now, before, returns = jnp.array([0.5, 0.1, -0.9]), jnp.zeros(3), jnp.array([1.0, 1.0, 1.0])
    found = value_loss(now, before, returns, 0.2)
    np.testing.assert_allclose(found, [0.5 * 0.8**2, 0.5 * 0.9**2, 0.5 * 1.9**2], rtol=1e-6)
    slope = jax.grad(lambda v: value_loss(v, before, returns, 0.2).sum())(now)
    up, down = (np.asarray(value_loss(now + by, before, returns, 0.2), np.float64) for by in (1e-3, -1e-3))
    np.testing.assert_allclose(slope, (up - down) / 2e-3, atol=1e-2)
    assert slope[0] == 0 and slope[1] < 0 and slope[2] < 0
    np.testing.assert_allclose(value_loss(now, before, returns, None), 0.5 * (now - returns) ** 2)


def test_the_critic_learns_what_the_rewards_tell():
    made = updater(critic_optimizer={"learning_rate": 0.02})
    first = made.update(ROWS, REWARDS)
    assert first["value_explained"] <= 0.05
    for _ in range(30):
        last = made.update(ROWS, REWARDS)
    assert last["value_loss"] < 0.5 * first["value_loss"]
    assert last["value_explained"] > 0.5


def test_without_a_critics_opinion_advantages_are_whitened_rewards():
    """The value head starts at 0: with lambda = 1 every token of a line has its reward, as in REINFORCE."""
    one = updater(loss={"gae_lambda": 1.0, "whiten": False}).update(ROWS, REWARDS)
    run = config(
        rollout={"max_length": 10}, groups_per_batch=2, optimizer={"learning_rate": 0.01}, loss={"dual_clip": None}
    )
    other = JaxUpdater(MemoryStore(), BASE, run, SMALL, start_params()).update(ROWS, REWARDS)
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)


@pytest.mark.parametrize("layout", [{"micro_batch": 1}, {"row_tokens": 18, "micro_batch": 1}], ids=str)
def test_micro_batches_and_packing_change_nothing(layout):
    whole, parted = updater(), updater(**layout)
    for _ in range(2):
        figures, same = whole.update(ROWS, REWARDS), parted.update(ROWS, REWARDS)
    assert same == pytest.approx(figures, rel=1e-3, abs=1e-4)
    for name, value in flatten(whole.params).items():
        np.testing.assert_allclose(flatten(parted.params)[name], value, atol=1e-4)


def test_a_snapshot_holds_the_critic_to_the_bit():
    store = MemoryStore()
    made = updater(store, mini_batches=2)
    made.update(ROWS, REWARDS)
    prefix, files, optimizer = made.save(1, "L")
    manifest = CheckpointManifest.model_construct(
        prefix=prefix, files=files, params_sha256=made.params_digest(), optimizer_sha256=optimizer
    )
    again = updater(store, mini_batches=2)
    assert again.optimizer_digest() != optimizer
    again.load(manifest)
    figures, same = made.update(ROWS, REWARDS), again.update(ROWS, REWARDS)
    assert figures == same
    assert (made.params_digest(), made.optimizer_digest()) == (again.params_digest(), again.optimizer_digest())


def test_groups_of_one_are_trained_and_audited():
    store = MemoryStore()
    made, workers = start(store, steps=3, group_size=1, groups_per_batch=3, loss={"algorithm": "ppo"})
    drive(made, workers, 3)
    finish(made, workers)
    assert [len(r.trained()) for r in records(store)] == [3, 3, 3, 0]
    assert {row.advantage for r in records(store) for row in r.trained()} == {0.0}
    assert audit.verify(store, "test").ok
