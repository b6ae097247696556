"""The compiled functions of the JAX engine. Shapes are few and fixed, so lengths may vary without recompiling.

Cache rows keep the stream without its last token: pre-fill writes all but the last one, decoding feeds the last one,
samples the next, and so on. A dispatch of decoding reads the rows once, keeps what it adds apart, and writes that back
at its end. Parameters are arguments, so that a weight swap compiles nothing.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from models.cache import KVCache, copy_rows, empty_cache, head, put_tokens, take_rows
from models.config import DecoderConfig
from models.logprobs import of_tokens
from models.pure import Params, extend, module
from rollout.jax_sampling import sample


class Slots(NamedTuple):
    """What decoding needs of every row, [R] each (stop_ids [R, K], padded with -1)."""

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


@partial(jax.jit, donate_argnames="cache")
def copy(cache: KVCache, pairs: jax.Array, count: jax.Array) -> KVCache:
    """Copy whole rows: the first `count` of `pairs` [P, 2], from the first of each to the second."""
    return copy_rows(cache, pairs, count)


@partial(jax.jit, static_argnames=("config", "span"), donate_argnames="cache")
def prefill(
    config: DecoderConfig,
    params: Params,
    cache: KVCache,
    rows: jax.Array,
    tokens: jax.Array,
    lengths: jax.Array,
    counts: jax.Array,
    *,
    span: int,
) -> KVCache:
    """Write `counts[p]` of `tokens` [P, C] behind `lengths[p]` cached ones, at most `span`, of row `rows[p]`.

    Nothing where the count is 0.
    """
    past = take_rows(head(cache, span), rows)
    _, new = module(config, params).read(tokens, past, lengths)
    return put_tokens(cache, rows, lengths, counts, new)


@partial(jax.jit, static_argnames=("config", "steps", "span"), donate_argnames="cache")
def decode(
    config: DecoderConfig,
    params: Params,
    cache: KVCache,
    rows: jax.Array | None,
    slots: Slots,
    *,
    steps: int,
    span: int,
) -> tuple[KVCache, jax.Array, jax.Array, jax.Array]:
    """Sample up to `steps` tokens for each of the cache rows `rows` [R] that is active in `slots`; None: all, in order.

    Some rows are copied out of the cache first, all of them are read where they are. At most `span` places of each row
    are taken when it starts. Returns the cache, tokens and log-probs [steps, R], and how many of them each row sampled
    [R]. It ends early where no row is active any more.
    """
    decoder, past, count = module(config, params), head(cache, span), len(slots.token)
    if rows is not None:
        past = take_rows(past, rows)
    recent = empty_cache(config, count, steps)
    none = jnp.zeros((steps, count), jnp.int32), jnp.zeros((steps, count), jnp.float32)

    def step(state: _State) -> _State:
        number, s, recent, tokens, logprobs = state
        logits, recent = decoder.step(s.token, past, slots.length, recent, number)
        logits = logits.astype(jnp.float32)
        token = sample(logits, s.temperature, s.top_p, s.top_k, s.seed, slots.length + number)
        tokens, logprobs = tokens.at[number].set(token), logprobs.at[number].set(of_tokens(logits, token))
        counts = s.active.astype(jnp.int32)
        length, budget = s.length + counts, s.budget - counts
        over = jnp.any(token[:, None] == s.stop_ids, axis=1) | (budget <= 0)
        s = s._replace(token=token, length=length, budget=budget, active=s.active & ~over)
        return _State(number + 1, s, recent, tokens, logprobs)

    goes_on = lambda state: (state.number < steps) & jnp.any(state.slots.active)  # noqa: E731
    state = jax.lax.while_loop(goes_on, step, _State(jnp.int32(0), slots, recent, *none))
    counts = state.slots.length - slots.length
    rows = jnp.arange(count) if rows is None else rows
    return put_tokens(cache, rows, slots.length, counts, state.recent), state.tokens, state.logprobs, counts


class _State(NamedTuple):
    number: jax.Array
    slots: Slots
    recent: KVCache
    tokens: jax.Array
    logprobs: jax.Array


@partial(jax.jit, static_argnames="config")
def score(config: DecoderConfig, params: Params, tokens: jax.Array, count: jax.Array) -> jax.Array:
    """Log-probs [T - 1] of tokens[1:] ([T], the first `count` are real) by the functions that decoding uses."""
    cache = empty_cache(config, 1, tokens.shape[0])
    logits, _ = extend(config, params, tokens[None], cache, jnp.zeros(1, jnp.int32), count[None])
    return of_tokens(logits[0, :-1], tokens[1:])
