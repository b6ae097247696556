"""The critic of PPO: a decoder of its own that starts as a copy of the policy, and a linear head that says a value.

It shares nothing with the policy, so that what it learns never moves the policy's log-probs (Ziegler et al., arXiv
1909.08593, keep the two apart likewise). The head starts at 0: the first advantages are the rewards.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from models.config import DecoderConfig
from models.pure import Params, module
from models.sharding import ALONE, Placement
from schemas.algorithms import Loss
from schemas.errors import RunStopped
from trainer.batch import Batch, unpacked
from trainer.gae import explained, gae, whitened
from trainer.step import Passes, Step, Sums, TrainState, compiled, init_state


class Lesson(NamedTuple):
    """A micro-batch for the critic."""

    batch: Any
    """What the decoder sees: a `Batch`."""
    values: Any
    """[N, L] what the critic said before the step."""
    returns: Any
    """[N, L]."""


def value_params(config: DecoderConfig, params: Params, placement: Placement = ALONE) -> Params:
    """The critic at the start, from the policy's parameters."""
    head = {"weight": jnp.zeros((config.hidden_size,), jnp.float32), "bias": jnp.zeros((), jnp.float32)}
    return {"trunk": placement.fresh(params), "value_head": head}


def token_values(config: DecoderConfig, params: Params, batch: Batch[jax.Array], passes: Passes) -> jax.Array:
    """[N, L] value of the state in which each token was sampled: that after the token before it."""
    used = passes.placement.gathered(jax.tree.map(lambda x: x.astype(passes.dtype), params["trunk"]))
    decoder = module(config, used)
    hidden = decoder.hidden(batch.tokens, batch.positions, batch.segments, remat=passes.remat)
    head = params["value_head"]
    said = jnp.sum(hidden.astype(jnp.float32) * head["weight"], axis=-1) + head["bias"]
    return unpacked(jnp.pad(said[:, :-1], ((0, 0), (1, 0))), batch.places)


def value_loss(now: jax.Array, before: jax.Array, returns: jax.Array, clip: float | None) -> jax.Array:
    """[N, L] half the squared error; with `clip` the greater of it and that of a value that moved no further.

    PPO's value clipping (Schulman et al., `baselines`; Engstrom et al., arXiv 2005.12729, section 3).
    """
    free = (now - returns) ** 2
    if clip is None:
        return 0.5 * free
    held = before + jnp.clip(now - before, -clip, clip)
    return 0.5 * jnp.maximum(free, (held - returns) ** 2)


def make_value_step(config: DecoderConfig, loss: Loss, optimizer: optax.GradientTransformation, passes: Passes) -> Step:
    """A step of the value loss, averaged over sampled tokens."""

    def part_loss(params: Params, lesson: Lesson) -> tuple[jax.Array, Sums]:
        mask = lesson.batch.mask
        now = token_values(config, params, lesson.batch, passes)
        values = value_loss(now, lesson.values, lesson.returns, loss.value_clip)
        return jnp.sum(values * mask), (jnp.sum(mask), {})

    return compiled(part_loss, optimizer, lambda _: {}, placement=passes.placement)


class Critic:
    """Values of the states of a batch, advantages from them, and their improvement."""

    def __init__(
        self, config: DecoderConfig, loss: Loss, optimizer: optax.GradientTransformation, params: Params, passes: Passes
    ) -> None:
        self._loss = loss
        self._placement = passes.placement
        self.state: TrainState = init_state(value_params(config, params, self._placement), optimizer, self._placement)
        self._step = make_value_step(config, loss, optimizer, passes)
        self._values = jax.jit(lambda p, batch: token_values(config, p, batch, passes))

    def judge(
        self, dealt: list[list[Batch[np.ndarray]]]
    ) -> tuple[list[list[Batch[np.ndarray]]], list[list[Lesson]], float]:
        """The batches with a token's advantage in place of a line's reward, the critic's lessons, and how much of the
        returns' variance the values explain. The batches are those of each update, in micro-batches."""
        flat = [batch for parts in dealt for batch in parts]
        masks = [batch.mask.astype(np.float64) for batch in flat]
        values = [self._said(batch) for batch in flat]
        settings = self._loss.gamma, self._loss.gae_lambda
        found = [
            gae(v, m, b.advantages.astype(np.float64), *settings) for v, m, b in zip(values, masks, flat, strict=True)
        ]
        advantages, returns = [a for a, _ in found], [r for _, r in found]
        if self._loss.whiten:
            advantages = whitened(advantages, masks)
        judged = [b._replace(advantages=a.astype(np.float32)) for b, a in zip(flat, advantages, strict=True)]
        lessons = [Lesson(b, *_narrow(v, r)) for b, v, r in zip(flat, values, returns, strict=True)]
        sizes = [len(parts) for parts in dealt]
        return _split(judged, sizes), _split(lessons, sizes), explained(returns, values, masks)

    def _said(self, batch: Batch[np.ndarray]) -> np.ndarray:
        """[N, L] values of a micro-batch."""
        found = self._values(self.state.params, self._placement.dealt(batch))
        return np.asarray(self._placement.readable(found), np.float64)

    def learn(self, lessons: list[Lesson]) -> dict[str, float]:
        """One update; its loss and gradient norm."""
        self.state, figures = self._step(self.state, lessons)
        found = {"value_loss": float(figures["loss"]), "value_grad_norm": float(figures["grad_norm"])}
        if not all(map(math.isfinite, found.values())):
            raise RunStopped(
                f"the critic's update is not finite ({found}): lower rl.critic_optimizer.learning_rate; the batch is "
                f"in the ledger and its shards are kept"
            )
        return found


def _narrow(*arrays: np.ndarray) -> list[np.ndarray]:
    return [a.astype(np.float32) for a in arrays]


def _split(items: list[Any], sizes: list[int]) -> list[list[Any]]:
    left = iter(items)
    return [[next(left) for _ in range(size)] for size in sizes]
