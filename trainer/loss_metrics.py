"""What a step says of its batch: sums over sampled tokens that add up over micro-batches, and the means at the end."""

import jax
import jax.numpy as jnp

from trainer.losses import BOUND, PolicyLoss


def metric_sums(
    policy: PolicyLoss,
    logprobs: jax.Array,
    behaviour: jax.Array,
    entropy: jax.Array,
    weight: jax.Array | None,
    mask: jax.Array,
) -> dict[str, jax.Array]:
    """Sums (and one maximum) over sampled tokens, all arguments [B, T]; `weight` is the correction's."""
    gap = jnp.clip(behaviour - logprobs, -BOUND, BOUND) * mask
    now = jnp.exp(-gap)
    return {
        "tokens": jnp.sum(mask),
        "clip_fraction": jnp.sum(policy.clipped * mask),
        "masked_fraction": jnp.sum((weight == 0.0) * mask) if weight is not None else jnp.zeros(()),
        "ratio": jnp.sum(now * mask),
        "ratio_squared": jnp.sum(now**2 * mask),
        "ratio_max": jnp.max(now * mask),
        "entropy": jnp.sum(entropy * mask),
        # KL(sampler || learner) by the k3 estimator: each term at least 0
        "mismatch_kl": jnp.sum((now - 1.0 + gap) * mask),
    }


def merged(one: dict[str, jax.Array], other: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The metric sums of two micro-batches together."""
    return {k: (jnp.maximum if k.endswith("_max") else jnp.add)(v, other[k]) for k, v in one.items()}


def means(sums: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Metrics from `metric_sums`: means per token, and the effective sample size (Kish) as a share of the tokens."""
    tokens = jnp.maximum(sums["tokens"], 1.0)
    whole = ("tokens", "ratio_squared", "ratio_max")
    out = {k: v / tokens for k, v in sums.items() if k not in whole}
    out["effective_sample_size"] = sums["ratio"] ** 2 / jnp.maximum(sums["ratio_squared"] * tokens, 1e-9)
    return out | {"ratio_max": sums["ratio_max"]}
