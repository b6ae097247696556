"""The jitted optimizer step. Shapes are fixed, so it compiles once; sums stay unreduced over micro-batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from models.config import DecoderConfig
from models.logprobs import token_logprobs
from models.pure import Params
from schemas.algorithms import Loss
from trainer.aggregation import AGGREGATIONS
from trainer.batch import Batch
from trainer.corrections import CORRECTIONS
from trainer.divergence import LOSS_TERMS
from trainer.loss_metrics import means, merged, metric_sums
from trainer.losses import Terms, find_policy_loss


class TrainState(NamedTuple):
    """What an optimizer step changes, and all of it."""

    params: Params
    optimizer: Any


Sums = tuple[jax.Array, dict[str, jax.Array]]
PartLoss = Callable[[Params, Any], tuple[jax.Array, Sums]]
"""(parameters, micro-batch) → (sum of the loss, (its count, sums of metrics))."""
Step = Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]
"""(state, batch of arrays whose first axis micro-batches split) → (state after it, figures)."""


def init_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step."""
    return TrainState(params, optimizer.init(params))


def make_rl_step(
    config: DecoderConfig, loss: Loss, optimizer: optax.GradientTransformation, parts: int = 1, folder: str = ""
) -> Step:
    """A step of the policy loss that `loss` describes; the batch is taken in `parts` equal micro-batches.

    `folder`: where a loss of the user's own lies. RequestError where it has no such function.
    """
    aggregate, policy_loss = AGGREGATIONS[loss.aggregation], find_policy_loss(loss.policy, folder)

    def part_loss(params: Params, batch: Batch[jax.Array]) -> tuple[jax.Array, Sums]:
        logprobs, entropy = token_logprobs(config, params, batch.tokens, positions(batch.tokens), batch.valid)
        old, weight = _proximal(loss, jax.lax.stop_gradient(logprobs), batch)
        advantages = jnp.broadcast_to(batch.advantages[:, None], logprobs.shape)
        policy = policy_loss(Terms(logprobs, old, advantages, batch.mask), loss)
        values = policy.loss if weight is None else policy.loss * weight
        sums = metric_sums(policy, logprobs, batch.behaviour, entropy, weight, batch.mask)
        if loss.kl in LOSS_TERMS:
            divergence = LOSS_TERMS[loss.kl](logprobs, batch.reference)
            values += loss.kl_coefficient * divergence
            sums["reference_kl"] = jnp.sum(divergence * batch.mask)
        total, count = aggregate(values, batch.mask, batch.weights)
        return total, (count, sums)

    return compiled(part_loss, optimizer, parts, means)


def _proximal(loss: Loss, now: jax.Array, batch: Batch[jax.Array]) -> tuple[jax.Array, jax.Array | None]:
    """What ratios are taken against, and the weight of each token.

    A batch is trained by one update, so the learner's policy at the step is the one whose log-probs are at hand: a
    decoupled loss needs no forward pass of its own.
    """
    if loss.correction == "none":
        return batch.behaviour, None
    return now, CORRECTIONS[loss.correction](now, batch.behaviour, batch.mask, loss)


def make_sft_step(config: DecoderConfig, optimizer: optax.GradientTransformation) -> Step:
    """A step of the negative log-likelihood, averaged over the batch's masked tokens."""

    def part_loss(params: Params, batch: Batch[jax.Array]) -> tuple[jax.Array, Sums]:
        logprobs, entropy = token_logprobs(config, params, batch.tokens, positions(batch.tokens), batch.valid)
        sums = {"tokens": jnp.sum(batch.mask), "entropy": jnp.sum(entropy * batch.mask)}
        return -jnp.sum(logprobs * batch.mask), (sums["tokens"], sums)

    return compiled(part_loss, optimizer, 1, lambda s: {"entropy": s["entropy"] / jnp.maximum(s["tokens"], 1.0)})


def positions(tokens: jax.Array) -> jax.Array:
    """[B, T] positions of right-padded rows."""
    return jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)


def compiled(part_loss: PartLoss, optimizer: optax.GradientTransformation, parts: int, finish: Any) -> Step:
    """The jitted step of a loss, its batch in `parts` equal micro-batches. `finish`: sums of metrics → figures."""
    value_and_grad = jax.value_and_grad(part_loss, has_aux=True)

    def gradients(params: Params, batch: Any) -> Any:
        if parts == 1:
            return value_and_grad(params, batch)
        split = jax.tree.map(lambda x: x.reshape(parts, x.shape[0] // parts, *x.shape[1:]), batch)
        first = jax.eval_shape(value_and_grad, params, jax.tree.map(lambda x: x[0], split))
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), first)

        def add(total: Any, part: Any) -> tuple[Any, None]:
            return _added(total, value_and_grad(params, part)), None

        return jax.lax.scan(add, zero, split)[0]

    def step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        (total, (count, sums)), grads = gradients(state.params, batch)
        count = jnp.maximum(count, 1e-9)
        grads = jax.tree.map(lambda g: g / count, grads)
        updates, new = optimizer.update(grads, state.optimizer, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        figures = {"loss": total / count, "grad_norm": optax.tree.norm(grads)} | finish(sums)
        return TrainState(params, new), figures

    return jax.jit(step, donate_argnums=0)


def _added(one: Any, other: Any) -> Any:
    """Two micro-batches' losses, counts and gradients summed, and their metrics merged."""
    ((loss, (count, sums)), grads), ((loss2, (count2, sums2)), grads2) = one, other
    return (loss + loss2, (count + count2, merged(sums, sums2))), jax.tree.map(jnp.add, grads, grads2)
