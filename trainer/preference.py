"""Preference losses: pure functions from the log-probs of both sides of pairs to a loss for each pair. P pairs."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

CERTAIN = -1e-6
"""Average log-probs above this count as this: the odds of a certain answer are infinite."""


class Sides(NamedTuple):
    """A value of the chosen and one of the rejected side of each pair: [P] each."""

    chosen: jax.Array
    rejected: jax.Array


class PreferenceLoss(NamedTuple):
    """Loss [P], and what the policy is said to give either side."""

    loss: jax.Array
    rewards: Sides


def dpo(policy: Sides, reference: Sides, beta: float, label_smoothing: float = 0.0) -> PreferenceLoss:
    """Direct preference optimization (arXiv 2305.18290, eq. 7): -log sigmoid of the difference of implicit rewards,
    which are beta x log(policy / reference) of a side, its log-probs summed over the assistant's tokens.

    `label_smoothing` (Mitchell 2023, conservative DPO) is the share of pairs taken to be the wrong way round.
    """
    chosen, rejected = (beta * (now - then) for now, then in zip(policy, reference, strict=True))
    right, wrong = jax.nn.log_sigmoid(chosen - rejected), jax.nn.log_sigmoid(rejected - chosen)
    return PreferenceLoss(-(1.0 - label_smoothing) * right - label_smoothing * wrong, Sides(chosen, rejected))


def orpo(policy: Sides, odds_weight: float) -> PreferenceLoss:
    """Odds ratio preference optimization (arXiv 2403.07691, eq. 6 and 7): the chosen side's negative log-likelihood,
    and -log sigmoid of the log odds ratio. Log-probs are averages over the assistant's tokens of a side."""
    chosen, rejected = (jnp.minimum(side, CERTAIN) for side in policy)
    odds = (chosen - log1mexp(chosen)) - (rejected - log1mexp(rejected))
    loss = -policy.chosen - odds_weight * jax.nn.log_sigmoid(odds)
    return PreferenceLoss(loss, Sides(odds_weight * policy.chosen, odds_weight * policy.rejected))


def log1mexp(x: jax.Array) -> jax.Array:
    """log(1 - exp(x)) for x < 0, exact at both ends (Mächler 2012)."""
    return jnp.where(x > -0.6931472, jnp.log(-jnp.expm1(x)), jnp.log1p(-jnp.exp(x)))
