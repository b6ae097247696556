"""The two compiled functions of the JAX engine. Shapes are fixed, so lengths may vary without recompiling.

Cache rows keep the stream without its last token: pre-fill writes all but the last one, decoding feeds the last one,
samples the next, and so on. Parameters are arguments, so that a weight swap compiles nothing.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from models.cache import KVCache, empty_cache, head, put_head, put_rows, take_rows
from models.config import DecoderConfig
from models.logprobs import of_tokens
from models.pure import Params, extend
from rollout.jax_sampling import sample


class Slots(NamedTuple):
    """What decoding needs of every slot, [R] each (stop_ids [R, K], padded with -1)."""

    token: jax.Array
    """The stream's last token, not in the cache yet."""
    length: jax.Array
    """Tokens in the cache."""
    active: jax.Array
    budget: jax.Array
    """Tokens that may still be sampled."""
    temperature: jax.Array
    top_p: jax.Array
    top_k: jax.Array
    seed: jax.Array
    stop_ids: jax.Array


@partial(jax.jit, static_argnames="config", donate_argnames="cache")
def prefill(
    config: DecoderConfig,
    params: Params,
    cache: KVCache,
    rows: jax.Array,
    tokens: jax.Array,
    lengths: jax.Array,
    counts: jax.Array,
) -> KVCache:
    """Write `counts[p]` of `tokens` [P, C] behind `lengths[p]` cached ones of row `rows[p]`; none if out of range."""
    part = take_rows(cache, rows)
    _, part = extend(config, params, tokens, part, lengths, counts, last_only=True)
    return put_rows(cache, rows, part)


@partial(jax.jit, static_argnames=("config", "steps", "span"), donate_argnames="cache")
def decode(
    config: DecoderConfig, params: Params, cache: KVCache, slots: Slots, *, steps: int, span: int
) -> tuple[KVCache, jax.Array, jax.Array, jax.Array]:
    """Sample up to `steps` tokens in every active slot, attending to the first `span` cache places.

    Returns the cache, and per step and slot [steps, R]: tokens, log-probs, and whether the slot was active.
    """

    def step(carry: tuple[KVCache, Slots], _: None) -> tuple[tuple[KVCache, Slots], tuple[jax.Array, ...]]:
        part, s = carry
        counts = s.active.astype(jnp.int32)
        logits, part = extend(config, params, s.token[:, None], part, s.length, counts, last_only=True)
        token = sample(logits.astype(jnp.float32), s.temperature, s.top_p, s.top_k, s.seed, s.length)
        length, budget = s.length + counts, s.budget - counts
        over = jnp.any(token[:, None] == s.stop_ids, axis=1) | (budget <= 0)
        new = s._replace(
            token=jnp.where(s.active, token, s.token), length=length, budget=budget, active=s.active & ~over
        )
        return (part, new), (token, of_tokens(logits, token), s.active)

    (part, _), (tokens, logprobs, active) = jax.lax.scan(step, (head(cache, span), slots), None, length=steps)
    return put_head(cache, part), tokens, logprobs, active


@partial(jax.jit, static_argnames="config")
def score(config: DecoderConfig, params: Params, tokens: jax.Array, count: jax.Array) -> jax.Array:
    """Log-probs [T - 1] of tokens[1:] ([T], the first `count` are real) by the functions that decoding uses."""
    cache = empty_cache(config, 1, tokens.shape[0])
    logits, _ = extend(config, params, tokens[None], cache, jnp.zeros(1, jnp.int32), count[None])
    return of_tokens(logits[0, :-1], tokens[1:])
