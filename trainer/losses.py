"""Policy losses and their aggregation: pure functions of arrays, with sums and counts kept apart until the end.

B rows, T tokens. A batch is summed in micro-batches and shards without changing what is computed, because nothing is
divided before every part has been added.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class PolicyLoss(NamedTuple):
    """Per-token loss [B, T] and, per token, what the metrics sum."""

    loss: jax.Array
    ratio: jax.Array
    clipped: jax.Array
    """1 where the clip decides the loss."""


def clipped_surrogate(
    logprobs: jax.Array,
    behaviour: jax.Array,
    advantages: jax.Array,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> PolicyLoss:
    """PPO's clipped surrogate (arXiv 1707.06347, eq. 7) against the policy that sampled; dual clip: arXiv 1912.09729.

    logprobs, behaviour [B, T]: log-probs of the sampled tokens now and when they were sampled; advantages [B].
    GRPO (arXiv 2402.03300) is this loss with group-relative advantages. Log-ratios are kept in ±20 against overflow.
    """
    ratio = jnp.exp(jnp.clip(logprobs - behaviour, -20.0, 20.0))
    advantage = advantages[:, None]
    free, held = -advantage * ratio, -advantage * jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    loss, clipped = jnp.maximum(free, held), held > free
    if dual_clip is not None:
        ceiling = -advantage * dual_clip
        bounded = (advantage < 0) & (ceiling < loss)
        loss, clipped = jnp.where(bounded, ceiling, loss), clipped | bounded
    return PolicyLoss(loss, ratio, clipped.astype(jnp.float32))


def token_mean(values: jax.Array, mask: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sum and count for the mean over all sampled tokens of the batch (DAPO, arXiv 2503.14476). values, mask [B, T]."""
    weight = mask * weights[:, None]
    return jnp.sum(values * weight), jnp.sum(weight)


def sequence_mean(values: jax.Array, mask: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sum and count for the mean over sequences of their token means (GRPO). weights [B] is 0 for padding rows."""
    per_row = jnp.sum(values * mask, axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1.0)
    return jnp.sum(per_row * weights), jnp.sum(weights)


AGGREGATIONS = {"token_mean": token_mean, "sequence_mean": sequence_mean}
"""By the name in `rl.loss.aggregation`: (values, mask, weights) → (sum, count)."""


def metric_sums(
    policy: PolicyLoss,
    logprobs: jax.Array,
    behaviour: jax.Array,
    entropy: jax.Array,
    mask: jax.Array,
) -> dict[str, jax.Array]:
    """Sums (and one maximum) over sampled tokens from which a step's metrics are made (`means`)."""
    gap = jnp.clip(behaviour - logprobs, -20.0, 20.0) * mask
    return {
        "tokens": jnp.sum(mask),
        "clip_fraction": jnp.sum(policy.clipped * mask),
        "ratio": jnp.sum(policy.ratio * mask),
        "ratio_squared": jnp.sum(policy.ratio**2 * mask),
        "ratio_max": jnp.max(policy.ratio * mask),
        "entropy": jnp.sum(entropy * mask),
        # KL(sampler || learner) by the k3 estimator: exp(-gap) - 1 + gap, each term at least 0
        "mismatch_kl": jnp.sum((jnp.exp(-gap) - 1.0 + gap) * mask),
    }


def merged(one: dict[str, jax.Array], other: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The metric sums of two micro-batches together."""
    return {k: (jnp.maximum if k.endswith("_max") else jnp.add)(v, other[k]) for k, v in one.items()}


def means(sums: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Metrics from `metric_sums`: means per token, and the effective sample size (Kish) as a share of the tokens."""
    tokens = jnp.maximum(sums["tokens"], 1.0)
    out = {k: sums[k] / tokens for k in ("clip_fraction", "ratio", "entropy", "mismatch_kl")}
    out["effective_sample_size"] = sums["ratio"] ** 2 / jnp.maximum(sums["ratio_squared"] * tokens, 1e-9)
    return out | {"ratio_max": sums["ratio_max"]}
