"""Divergence from the weights that RL starts from: measured from version 0, whatever has been learned since."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.protocol import config, trajectory
from support.tiny import TINY, lively

from models.pure import apply, init_params
from storage.memory import MemoryStore
from trainer.assembler import Row
from trainer.jax_updater import JaxUpdater

SMALL = dataclasses.replace(TINY, num_hidden_layers=1)
ROWS = tuple(Row(("w", 0, i), trajectory(0, i), str(i)) for i in range(3))


def updater(**loss):
    run = config(rollout={"max_length": 8}, optimizer={"learning_rate": 0.05}, loss=loss, micro_batch=2)
    return JaxUpdater(MemoryStore(), "base", run, SMALL, start())


def start():
    return jax.tree.map(np.asarray, lively(init_params(SMALL, 0)))


def gap(row):
    """log(sampler / version 0) summed over what was sampled, from the decoder's logits."""
    t = row.trajectory
    tokens = jnp.asarray(t.tokens)[None]
    scores = apply(SMALL, start(), tokens, jnp.arange(len(t.tokens))[None], jnp.ones_like(tokens, bool))
    logs = np.asarray(jax.nn.log_softmax(scores.astype(jnp.float32)))[0]
    chosen = [i for i, sampled in enumerate(t.mask) if sampled]
    return sum(t.logprobs[i] - logs[i - 1, t.tokens[i]] for i in chosen)


def test_the_gap_is_measured_from_version_0_before_and_after_learning():
    made = updater(kl="k1_reward", kl_coefficient=0.1)
    wanted = [gap(row) for row in ROWS]
    np.testing.assert_allclose(made.reference_gap(ROWS), wanted, rtol=1e-4, atol=1e-4)
    made.update(ROWS, (0.5, -1.0, 1.0))
    np.testing.assert_allclose(made.reference_gap(ROWS), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kl", ["k2", "k3"])
def test_divergence_starts_at_nothing_and_holds_the_policy_back(kl):
    free, held = updater(kl=kl, kl_coefficient=1e-6), updater(kl=kl, kl_coefficient=10.0)
    first = free.update(ROWS, (0.5, -1.0, 1.0))
    assert first["reference_kl"] == pytest.approx(0, abs=1e-6)
    held.update(ROWS, (0.5, -1.0, 1.0))
    for _ in range(6):
        far, near = (m.update(ROWS, (0.5, -1.0, 1.0))["reference_kl"] for m in (free, held))
    assert 0 <= near < far
