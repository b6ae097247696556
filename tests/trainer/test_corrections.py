"""Off-policy corrections and divergences against plain float64 loops; and penalties off the reward."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.protocol import FakeUpdater, trajectory

from schemas.algorithms import Loss
from storage.memory import MemoryStore
from trainer.assembler import Row
from trainer.corrections import CORRECTIONS
from trainer.divergence import k1, k2, k3
from trainer.shaping import overlong, shaping

B, T = 8, 5
LOW, HIGH = 0.7, 1.4


@pytest.fixture
def arrays():
    draw = np.random.default_rng(11)
    now = draw.normal(-1.5, 0.8, (B, T))
    mask = (draw.random((B, T)) < 0.7).astype(np.float64)
    mask[:, 1] = 1
    return now, now + draw.normal(0, 0.4, (B, T)), mask


def expected(name, now, then, mask, t):
    weight = math.exp(now[t] - then[t])
    if name == "decoupled":
        return weight
    if name == "truncated":
        return min(weight, HIGH)
    if name == "icepop":
        return weight if LOW <= weight <= HIGH else 0.0
    gaps = [n - o for n, o, m in zip(now, then, mask, strict=True) if m]
    return weight if LOW <= math.exp(sum(gaps) / len(gaps)) <= HIGH else 0.0


@pytest.mark.parametrize("name", CORRECTIONS)
def test_a_correction_is_the_papers(arrays, name):
    now, then, mask = arrays
    settings = Loss(correction=name, correction_low=LOW, correction_high=HIGH)
    found = CORRECTIONS[name](*map(jnp.asarray, arrays), settings)
    wanted = [[expected(name, now[i], then[i], mask[i], t) for t in range(T)] for i in range(B)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    if name in ("icepop", "sequence_mask"):
        assert 0 < np.count_nonzero(np.asarray(found) == 0) < B * T


@pytest.mark.parametrize("name", CORRECTIONS)
def test_what_was_sampled_by_the_learner_weighs_one(arrays, name):
    now, _, mask = arrays
    settings = Loss(correction=name, correction_low=LOW, correction_high=HIGH)
    assert np.asarray(CORRECTIONS[name](now, now, mask, settings)).tolist() == np.ones((B, T)).tolist()


def test_the_estimators_of_divergence(arrays):
    now, then, _ = arrays
    gap = now - then
    np.testing.assert_allclose(k1(now, then), gap, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(k2(now, then), gap**2 / 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(k3(now, then), np.exp(-gap) - 1 + gap, rtol=1e-4, atol=1e-6)


def test_k2_and_k3_pull_towards_the_reference_and_k1_does_not():
    """Exact gradients of a three-way softmax: only k2's expectation is that of the divergence; k1's is nothing."""
    logits, reference = jnp.array([0.3, -0.4, 0.9]), jax.nn.log_softmax(jnp.array([0.0, 0.5, -0.2]))
    probabilities = jax.nn.softmax(logits)

    def expectation(estimate):
        slopes = [jax.grad(lambda x, i=i: estimate(jax.nn.log_softmax(x)[i], reference[i]))(logits) for i in range(3)]
        return sum(p * s for p, s in zip(probabilities, slopes, strict=True))

    def divergence(x):
        return jnp.sum(jax.nn.softmax(x) * (jax.nn.log_softmax(x) - reference))

    true = jax.grad(divergence)(logits)
    np.testing.assert_allclose(expectation(k2), true, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(expectation(k1), 0, atol=1e-6)
    assert float(jnp.dot(expectation(k3), true)) > 0


def test_the_overlong_penalty_is_dapos():
    settings = Loss(algorithm="dapo", overlong_tokens=10, overlong_penalty=0.5)
    assert overlong([80, 90, 95, 100, 120], 100, settings).tolist() == [0, 0, -0.25, -0.5, -0.5]
    assert overlong([80, 100], 100, Loss()).tolist() == [0, 0]


def rows(count):
    return tuple(Row(("w", 0, i), trajectory(0, i), str(i)) for i in range(count))


def test_rewards_are_the_stored_ones_less_what_is_asked_for():
    updater, found = FakeUpdater(MemoryStore()), rows(4)
    plain = shaping(Loss(), 100, updater)(found)
    assert plain.tolist() == [r.trajectory.reward for r in found]
    both = Loss(kl="k1_reward", kl_coefficient=0.1, overlong_tokens=4, overlong_penalty=1.0)
    length = len(found[0].trajectory.tokens)
    wanted = plain - 0.5 - 0.1 * updater.reference_gap(found)
    np.testing.assert_allclose(shaping(both, length + 2, updater)(found), wanted)
    assert shaping(both, 100, updater)(()).tolist() == []
