"""The jitted step of a preference loss, and the log-probs of the reference policy that DPO measures by."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from models.config import DecoderConfig
from models.logprobs import token_logprobs
from models.pure import Params
from models.sharding import ALONE, Placement
from schemas.warm_ups import DPO, ORPO
from trainer.preference import PreferenceLoss, Sides, dpo, orpo
from trainer.preference_data import Pairs
from trainer.step import WHOLE, Frozen, Step, Sums, compiled, positions


def make_preference_step(
    config: DecoderConfig,
    stage: DPO | ORPO,
    optimizer: optax.GradientTransformation,
    frozen: Frozen = WHOLE,
    placement: Placement = ALONE,
) -> Step:
    """A step of the stage's loss, averaged over the batch's pairs."""

    def part_loss(params: Params, pairs: Pairs[jax.Array]) -> tuple[jax.Array, Sums]:
        summed = side_logprobs(config, params, pairs, placement)
        shown = summed if stage.kind == "dpo" else summed / jnp.sum(pairs.mask, axis=-1)
        found = _loss(stage, shown, pairs.reference)
        count = jnp.asarray(found.loss.shape[0], jnp.float32)
        return jnp.sum(found.loss), (count, _sums(shown, found) | {"pairs": count})

    return compiled(part_loss, optimizer, _means, frozen, placement)


def _loss(stage: DPO | ORPO, logprobs: jax.Array, reference: jax.Array) -> PreferenceLoss:
    policy = _sides(logprobs)
    if isinstance(stage, DPO):
        return dpo(policy, _sides(reference), stage.beta, stage.label_smoothing)
    return orpo(policy, stage.odds_weight)


def _sides(values: jax.Array) -> Sides:
    return Sides(values[:, 0], values[:, 1])


def _sums(logprobs: jax.Array, found: PreferenceLoss) -> dict[str, jax.Array]:
    margin = found.rewards.chosen - found.rewards.rejected
    policy = _sides(logprobs)
    return {
        "accuracy": jnp.sum(margin > 0, dtype=jnp.float32),
        "margin": jnp.sum(margin),
        "chosen_logprob": jnp.sum(policy.chosen),
        "rejected_logprob": jnp.sum(policy.rejected),
    }


def _means(sums: dict[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: total / sums["pairs"] for name, total in sums.items() if name != "pairs"}


def side_logprobs(
    config: DecoderConfig, params: Params, pairs: Pairs[jax.Array], placement: Placement = ALONE
) -> jax.Array:
    """[P, 2] log-probs of the assistant's tokens of either side, summed."""
    rows = (-1, pairs.tokens.shape[-1])
    tokens, valid = pairs.tokens.reshape(rows), pairs.valid.reshape(rows)
    logprobs, _ = token_logprobs(config, placement.gathered(params), tokens, positions(tokens), valid)
    return jnp.sum(logprobs.reshape(pairs.mask.shape) * pairs.mask, axis=-1)


def reference_logprobs(
    config: DecoderConfig, params: Params, placement: Placement = ALONE
) -> Callable[[Pairs[np.ndarray]], np.ndarray]:
    """`side_logprobs` of pairs under fixed parameters, compiled once for a shape."""
    score = jax.jit(partial(side_logprobs, config, placement=placement))
    held = placement.placed(params)
    return lambda pairs: np.asarray(score(held, placement.dealt(pairs)))
