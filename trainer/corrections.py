"""Off-policy corrections: what a token weighs because another policy sampled it. Pure functions, [B, T] to [B, T].

Decoupled PPO (Hilton et al., arXiv 2110.00641; AReaL, arXiv 2505.24298) clips against a proximal policy, here the
learner's at the step, and weighs by proximal / behaviour. Weights carry no gradient.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from schemas.algorithms import Loss
from trainer.losses import BOUND, Terms, sequence_log_ratio

Correction = Callable[[jax.Array, jax.Array, jax.Array, Loss], jax.Array]
"""(proximal, behaviour [B, T] log-probs, mask [B, T], settings) → weights [B, T]."""


def decoupled(proximal: jax.Array, behaviour: jax.Array, mask: jax.Array, settings: Loss) -> jax.Array:
    """The importance weight as it is."""
    return jnp.exp(jnp.clip(proximal - behaviour, -BOUND, BOUND))


def truncated(proximal: jax.Array, behaviour: jax.Array, mask: jax.Array, settings: Loss) -> jax.Array:
    """At most `correction_high` (truncated importance sampling, Ionides 2008; IMPALA, arXiv 1802.01561)."""
    return jnp.minimum(decoupled(proximal, behaviour, mask, settings), settings.correction_high)


def icepop(proximal: jax.Array, behaviour: jax.Array, mask: jax.Array, settings: Loss) -> jax.Array:
    """0 outside [`correction_low`, `correction_high`], token by token (IcePop, Ling team, arXiv 2510.18855)."""
    weight = decoupled(proximal, behaviour, mask, settings)
    return jnp.where(_inside(weight, settings), weight, 0.0)


def sequence_mask(proximal: jax.Array, behaviour: jax.Array, mask: jax.Array, settings: Loss) -> jax.Array:
    """All or nothing of a row, by the geometric mean of its weights; what stays keeps its token weights."""
    terms = Terms(proximal, behaviour, mask, mask)
    keep = _inside(jnp.exp(sequence_log_ratio(terms)), settings)
    return jnp.where(keep, decoupled(proximal, behaviour, mask, settings), 0.0)


def _inside(weight: jax.Array, settings: Loss) -> jax.Array:
    return (weight >= settings.correction_low) & (weight <= settings.correction_high)


CORRECTIONS: dict[str, Correction] = {
    "decoupled": decoupled,
    "truncated": truncated,
    "icepop": icepop,
    "sequence_mask": sequence_mask,
}
"""By the name in `rl.loss.correction`; `none` is the clip against the policy that sampled."""
