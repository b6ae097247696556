"""The optimizer step: a jitted pass for each micro-batch, whose sums stay unreduced, and a jitted update of them all.

Shapes are fixed, so each of the two compiles once, however many micro-batches a step has.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from models.config import DecoderConfig
from models.logprobs import token_logprobs
from models.pure import Params
from models.sharding import ALONE, Placement
from schemas.algorithms import Loss
from trainer.aggregation import AGGREGATIONS
from trainer.batch import Batch, unpacked
from trainer.corrections import CORRECTIONS
from trainer.divergence import LOSS_TERMS
from trainer.loss_metrics import means, merged, metric_sums
from trainer.losses import Terms, find_policy_loss


class TrainState(NamedTuple):
    """What an optimizer step changes, and all of it. `params` may be a part of the model's: see `Frozen`."""

    params: Params
    optimizer: Any


class Passes(NamedTuple):
    """How forward and backward passes are made: what it costs and how it is rounded, not what is computed."""

    remat: bool = False
    """Layers are made again on the way back instead of being kept."""
    dtype: str = "float32"
    """Of the passes; parameters, their gradients' sums and the optimizer stay in float32, and so do logits."""
    placement: Placement = ALONE
    """The devices that they are spread over."""


@dataclass(frozen=True)
class Frozen:
    """What no step changes, and how it makes the model's parameters together with what is trained."""

    params: Any
    join: Callable[[Params, Any], Params]
    """(trained, frozen) → all parameters."""

    def whole(self, trained: Params) -> Params:
        """All parameters."""
        return self.join(trained, self.params)


WHOLE = Frozen(None, lambda trained, _: trained)
"""Nothing is frozen."""
PLAIN = Passes()
Sums = tuple[jax.Array, dict[str, jax.Array]]
PartLoss = Callable[[Params, Any], tuple[jax.Array, Sums]]
"""(parameters, micro-batch) → (sum of the loss, (its count, sums of metrics))."""
Step = Callable[[TrainState, Sequence[Any]], tuple[TrainState, dict[str, jax.Array]]]
"""(state, micro-batches) → (the state after one update, figures)."""

Finish = Callable[[dict[str, jax.Array]], dict[str, jax.Array]]


def init_state(params: Params, optimizer: optax.GradientTransformation, placement: Placement = ALONE) -> TrainState:
    """The state before the first step."""
    return placement.placed(TrainState(params, optimizer.init(params)))


def make_rl_step(
    config: DecoderConfig,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    folder: str = "",
    passes: Passes = PLAIN,
    *,
    recomputed: bool = False,
    frozen: Frozen = WHOLE,
) -> Step:
    """A step of the policy loss that `loss` describes.

    `recomputed`: the batch has the log-probs of the policy at the step's start, since this is not its only update.
    `folder`: where a loss of the user's own lies. RequestError where it has no such function.
    """
    aggregate, policy_loss = AGGREGATIONS[loss.aggregation], find_policy_loss(loss.policy, folder)

    def part_loss(params: Params, batch: Batch[jax.Array]) -> tuple[jax.Array, Sums]:
        logprobs, entropy = line_logprobs(config, params, batch, passes)
        proximal = batch.proximal if recomputed else jax.lax.stop_gradient(logprobs)
        old, weight = _corrected(loss, proximal, batch)
        by_token = batch.advantages if batch.advantages.ndim == 2 else batch.advantages[:, None]
        advantages = jnp.broadcast_to(by_token, logprobs.shape)
        policy = policy_loss(Terms(logprobs, old, advantages, batch.mask), loss)
        values = policy.loss if weight is None else policy.loss * weight
        sums = metric_sums(policy, logprobs, batch.behaviour, entropy, weight, batch.mask)
        if loss.kl in LOSS_TERMS:
            divergence = LOSS_TERMS[loss.kl](logprobs, batch.reference)
            values += loss.kl_coefficient * divergence
            sums["reference_kl"] = jnp.sum(divergence * batch.mask)
        total, count = aggregate(values, batch.mask, batch.weights)
        return total, (count, sums)

    return compiled(part_loss, optimizer, means, frozen, passes.placement)


def _corrected(loss: Loss, proximal: jax.Array, batch: Batch[jax.Array]) -> tuple[jax.Array, jax.Array | None]:
    """What ratios are taken against, and the weight of each token.

    `proximal` [N, L]: log-probs under the learner's policy at the step's start. Where a step makes one update, that is
    the policy whose log-probs are at hand: a decoupled loss needs no forward pass of its own.
    """
    if loss.correction == "none":
        return batch.behaviour, None
    return proximal, CORRECTIONS[loss.correction](proximal, batch.behaviour, batch.mask, loss)


def make_sft_step(
    config: DecoderConfig,
    optimizer: optax.GradientTransformation,
    frozen: Frozen = WHOLE,
    placement: Placement = ALONE,
) -> Step:
    """A step of the negative log-likelihood, averaged over the batch's masked tokens."""

    def part_loss(params: Params, batch: Batch[jax.Array]) -> tuple[jax.Array, Sums]:
        logprobs, entropy = line_logprobs(config, params, batch, Passes(placement=placement))
        sums = {"tokens": jnp.sum(batch.mask), "entropy": jnp.sum(entropy * batch.mask)}
        return -jnp.sum(logprobs * batch.mask), (sums["tokens"], sums)

    finish: Finish = lambda s: {"entropy": s["entropy"] / jnp.maximum(s["tokens"], 1.0)}  # noqa: E731
    return compiled(part_loss, optimizer, finish, frozen, placement)


def positions(tokens: jax.Array) -> jax.Array:
    """[B, T] positions of right-padded rows of one stream each."""
    return jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)


def line_logprobs(
    config: DecoderConfig, params: Params, batch: Batch[jax.Array], passes: Passes = PLAIN
) -> tuple[jax.Array, jax.Array]:
    """Log-probs and entropies [N, L] of the micro-batch's tokens, a trajectory a line; 0 where there is no token."""
    used = passes.placement.gathered(jax.tree.map(lambda x: x.astype(passes.dtype), params))
    found = token_logprobs(config, used, batch.tokens, batch.positions, batch.segments, remat=passes.remat)
    return unpacked(found[0], batch.places), unpacked(found[1], batch.places)


class Totals(NamedTuple):
    """Sums over micro-batches, each starting at 0."""

    loss: jax.Array
    count: jax.Array
    metrics: dict[str, jax.Array]
    gradients: Params


def compiled(
    part_loss: PartLoss,
    optimizer: optax.GradientTransformation,
    finish: Finish,
    frozen: Frozen = WHOLE,
    placement: Placement = ALONE,
) -> Step:
    """The step of a loss. `finish`: sums of metrics → figures."""

    def joined_loss(params: Params, fixed: Any, part: Any) -> tuple[jax.Array, Sums]:
        return part_loss(frozen.join(params, fixed), part)

    value_and_grad = jax.value_and_grad(joined_loss, has_aux=True)

    # What is frozen is an argument of what is compiled, since a constant would be kept twice.
    def part_totals(params: Params, fixed: Any, part: Any) -> Totals:
        (loss, (count, sums)), gradients = value_and_grad(params, fixed, part)
        return Totals(loss, count, sums, gradients)

    @jax.jit
    def nothing(params: Params, fixed: Any, part: Any) -> Totals:
        shapes = jax.eval_shape(part_totals, params, fixed, part)
        return placement.kept(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes))

    @partial(jax.jit, donate_argnums=0)
    def add(totals: Totals, params: Params, fixed: Any, part: Any) -> Totals:
        return placement.kept(_added(totals, part_totals(params, fixed, part)))

    @partial(jax.jit, donate_argnums=0)
    def update(state: TrainState, totals: Totals) -> tuple[TrainState, dict[str, jax.Array]]:
        count = jnp.maximum(totals.count, 1e-9)
        gradients = jax.tree.map(lambda g: g / count, totals.gradients)
        updates, new = optimizer.update(gradients, state.optimizer, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        figures = {"loss": totals.loss / count, "grad_norm": optax.tree.norm(gradients)} | finish(totals.metrics)
        return placement.kept(TrainState(params, new)), figures

    def step(state: TrainState, parts: Sequence[Any]) -> tuple[TrainState, dict[str, jax.Array]]:
        totals = nothing(state.params, frozen.params, parts[0])
        for part in parts:
            totals = add(totals, state.params, frozen.params, placement.dealt(part))
        return update(state, totals)

    return step


def _added(one: Totals, other: Totals) -> Totals:
    gradients = jax.tree.map(jnp.add, one.gradients, other.gradients)
    return Totals(one.loss + other.loss, one.count + other.count, merged(one.metrics, other.metrics), gradients)
