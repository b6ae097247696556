"""From a loss per token to sums and counts, kept apart until the end.

A batch is summed in micro-batches and shards without changing what is computed, because nothing is divided before every
part has been added. B rows, T tokens; `weights` [B] is 0 for padding rows.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Aggregate = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""(values [B, T], mask [B, T], weights [B]) → (sum, count)."""


def token_mean(values: jax.Array, mask: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For the mean over all sampled tokens of the batch (DAPO, arXiv 2503.14476, section 3.3)."""
    weight = mask * weights[:, None]
    return jnp.sum(values * weight), jnp.sum(weight)


def sequence_mean(values: jax.Array, mask: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For the mean over sequences of their token means (GRPO, arXiv 2402.03300, eq. 3)."""
    per_row = jnp.sum(values * mask, axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1.0)
    return jnp.sum(per_row * weights), jnp.sum(weights)


def sequence_sum(values: jax.Array, mask: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For the mean over sequences of their token sums by the constant T (Dr. GRPO, arXiv 2503.20783, section 3.2)."""
    per_row = jnp.sum(values * mask, axis=1) / values.shape[1]
    return jnp.sum(per_row * weights), jnp.sum(weights)


AGGREGATIONS: dict[str, Aggregate] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "sequence_sum": sequence_sum,
}
"""By the name in `rl.loss.aggregation`."""
