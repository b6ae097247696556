"""Generalized advantage estimation against its definition in plain loops, and what it passes over."""

import numpy as np
import pytest

from trainer.gae import explained, gae, whitened

DRAW = np.random.default_rng(0)
MASK = (DRAW.random((5, 9)) < 0.6).astype(float)
MASK[0] = 0
VALUES, REWARDS = DRAW.normal(size=(5, 9)), DRAW.normal(size=5)


def by_definition(values, reward, gamma, decay):
    """A_k = sum over l of (gamma decay)^l delta_{k+l} over the sampled tokens of one line (the paper's equation 16)."""
    after = [*values[1:], 0.0]
    deltas = [(reward if k == len(values) - 1 else 0.0) + gamma * after[k] - values[k] for k in range(len(values))]
    return [sum((gamma * decay) ** (m - k) * deltas[m] for m in range(k, len(deltas))) for k in range(len(deltas))]


@pytest.mark.parametrize(("gamma", "decay"), [(1.0, 0.95), (0.9, 0.5), (1.0, 1.0), (0.99, 0.0)])
def test_it_is_the_papers_sum_over_the_sampled_tokens(gamma, decay):
    advantages, returns = gae(VALUES, MASK, REWARDS, gamma, decay)
    for line in range(5):
        chosen = MASK[line] > 0
        wanted = by_definition(list(VALUES[line][chosen]), REWARDS[line], gamma, decay)
        np.testing.assert_allclose(advantages[line][chosen], wanted, atol=1e-12)
        np.testing.assert_allclose(returns[line][chosen], wanted + VALUES[line][chosen], atol=1e-12)
    assert not advantages[MASK == 0].any() and not returns[MASK == 0].any()


def test_tokens_that_were_fed_are_passed_over():
    values, mask = np.array([[0.5, 9.0, -9.0, 0.25]]), np.array([[1.0, 0.0, 0.0, 1.0]])
    apart, _ = gae(values, mask, np.ones(1), 0.9, 0.8)
    close, _ = gae(values[:, [0, 3]], np.ones((1, 2)), np.ones(1), 0.9, 0.8)
    np.testing.assert_allclose(apart[0, [0, 3]], close[0])


def test_with_lambda_1_and_gamma_1_the_return_is_the_reward():
    _, returns = gae(VALUES, MASK, REWARDS, 1.0, 1.0)
    np.testing.assert_allclose(returns, REWARDS[:, None] * MASK, atol=1e-12)


def test_whitening_is_over_all_sampled_tokens_together():
    found = whitened([VALUES[:2], VALUES[2:]], [MASK[:2], MASK[2:]])
    chosen = np.concatenate(found)[MASK > 0]
    assert (chosen.mean(), chosen.std()) == (pytest.approx(0), pytest.approx(1))
    assert not np.concatenate(found)[MASK == 0].any()


def test_what_values_explain_is_a_share_of_the_variance():
    returns = [np.array([[1.0, 2.0, 3.0]])]
    assert explained(returns, returns, [np.ones((1, 3))]) == 1.0
    assert explained(returns, [np.zeros((1, 3))], [np.ones((1, 3))]) == 0.0
    assert explained([np.ones((1, 3))], returns, [np.ones((1, 3))]) == 0.0


@pytest.mark.parametrize("reward", [1.0, 0.3])
def test_returns_that_differ_by_rounding_alone_leave_nothing_to_explain(reward):
    """All rewards equal and lambda 1: each return is an advantage and a value whose sum is the reward, nearly."""
    _, returns = gae(VALUES, MASK, np.full(5, reward), 1.0, 1.0)
    assert explained([returns], [VALUES], [MASK]) == 0.0
