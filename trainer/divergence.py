"""Estimators of KL(policy || reference) from sampled tokens (Schulman, "Approximating KL divergence", 2020).

As a term of the loss, k2 has the gradient of the divergence on-policy and k3 a stable one with the right sign; k1 has
none in expectation, so it belongs in the reward.
"""

import jax
import jax.numpy as jnp

from trainer.losses import BOUND


def k1(logprobs: jax.Array, reference: jax.Array) -> jax.Array:
    """Log-ratio: unbiased, of either sign."""
    return jnp.clip(logprobs - reference, -BOUND, BOUND)


def k2(logprobs: jax.Array, reference: jax.Array) -> jax.Array:
    """Half the squared log-ratio: biased, low variance."""
    return 0.5 * k1(logprobs, reference) ** 2


def k3(logprobs: jax.Array, reference: jax.Array) -> jax.Array:
    """exp(-k1) - 1 + k1: unbiased, never negative (GRPO, arXiv 2402.03300, eq. 4)."""
    gap = k1(logprobs, reference)
    return jnp.exp(-gap) - 1.0 + gap


LOSS_TERMS = {"k2": k2, "k3": k3}
"""By the name in `rl.loss.kl`."""
