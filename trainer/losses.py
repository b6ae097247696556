"""Policy losses: pure functions from log-probs and advantages to a loss for each token. B rows, T tokens.

A loss of your own is a function of (`Terms`, the settings of `rl.loss`) to a `PolicyLoss`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from models.plugins import load_object
from schemas.algorithms import Loss

BOUND = 20.0
"""Log-ratios are kept in ±20 against overflow."""


class Terms(NamedTuple):
    """What a loss is made of."""

    logprobs: jax.Array
    """[B, T] of the sampled tokens, under the policy that learns."""
    old: jax.Array
    """[B, T] under the policy that ratios are taken against: the one that sampled, or the learner's at the step."""
    advantages: jax.Array
    """[B, T], the same for every token of a row unless a critic tells tokens apart."""
    mask: jax.Array
    """[B, T] 1 where the policy sampled the token."""


class PolicyLoss(NamedTuple):
    """Per-token loss [B, T] and, per token, what the metrics sum."""

    loss: jax.Array
    ratio: jax.Array
    clipped: jax.Array
    """1 where the clip decides the loss."""


def log_ratio(terms: Terms) -> jax.Array:
    """[B, T] log(now / old), bounded."""
    return jnp.clip(terms.logprobs - terms.old, -BOUND, BOUND)


def sequence_log_ratio(terms: Terms) -> jax.Array:
    """[B, 1] mean of a row's log-ratios over its sampled tokens: the log of their geometric mean."""
    total = jnp.sum(log_ratio(terms) * terms.mask, axis=1, keepdims=True)
    return total / jnp.maximum(jnp.sum(terms.mask, axis=1, keepdims=True), 1.0)


def ppo(terms: Terms, settings: Loss) -> PolicyLoss:
    """PPO's clipped surrogate (arXiv 1707.06347, eq. 7); for negative advantages the dual clip of arXiv 1912.09729.

    GRPO (arXiv 2402.03300, eq. 3) is this loss with group-relative advantages; DAPO (arXiv 2503.14476, eq. 8) with a
    higher upper bound.
    """
    found = _surrogate(jnp.exp(log_ratio(terms)), terms.advantages, settings)
    if settings.dual_clip is None:
        return found
    ceiling = -terms.advantages * settings.dual_clip
    bounded = (terms.advantages < 0) & (ceiling < found.loss)
    clipped = jnp.maximum(found.clipped, bounded.astype(jnp.float32))
    return PolicyLoss(jnp.where(bounded, ceiling, found.loss), found.ratio, clipped)


def gspo(terms: Terms, settings: Loss) -> PolicyLoss:
    """GSPO (arXiv 2507.18071, eq. 5): the surrogate of the sequence's geometric mean ratio, the same for each token."""
    ratio = jnp.exp(sequence_log_ratio(terms)) * jnp.ones_like(terms.logprobs)
    return _surrogate(ratio, terms.advantages, settings)


def gspo_token(terms: Terms, settings: Loss) -> PolicyLoss:
    """GSPO-token (arXiv 2507.18071, eq. 13): the value of `gspo`, with each token's own gradient."""
    token = jnp.exp(terms.logprobs - jax.lax.stop_gradient(terms.logprobs))
    ratio = jax.lax.stop_gradient(jnp.exp(sequence_log_ratio(terms))) * token
    return _surrogate(ratio, terms.advantages, settings)


def cispo(terms: Terms, settings: Loss) -> PolicyLoss:
    """CISPO (MiniMax-M1, arXiv 2506.13585, eq. 4): REINFORCE with clipped weights, so that no token loses its gradient.

    The loss is the gradient's: weight x advantage x log-prob, the weight held constant.
    """
    ratio = jnp.exp(log_ratio(terms))
    weight = jax.lax.stop_gradient(jnp.clip(ratio, 1.0 - settings.clip_low, 1.0 + settings.clip_high))
    clipped = (weight != jax.lax.stop_gradient(ratio)).astype(jnp.float32)
    return PolicyLoss(-weight * terms.advantages * terms.logprobs, ratio, clipped)


def _surrogate(ratio: jax.Array, advantages: jax.Array, settings: Loss) -> PolicyLoss:
    held = -advantages * jnp.clip(ratio, 1.0 - settings.clip_low, 1.0 + settings.clip_high)
    free = -advantages * ratio
    return PolicyLoss(jnp.maximum(free, held), ratio, (held > free).astype(jnp.float32))


PolicyLossFunction = Callable[[Terms, Loss], PolicyLoss]
POLICY_LOSSES: dict[str, PolicyLossFunction] = {"ppo": ppo, "gspo": gspo, "gspo_token": gspo_token, "cispo": cispo}
"""By the name in `rl.loss.policy`."""


def find_policy_loss(name: str, folder: str) -> PolicyLossFunction:
    """The built-in or the user's own function of this name; RequestError where there is none."""
    return POLICY_LOSSES[name] if name in POLICY_LOSSES else load_object(name, folder, "rl.loss.policy")
