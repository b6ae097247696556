"""Log-probabilities of given tokens, computed alike by the engine that samples and the learner that trains."""

import math

import jax
import jax.numpy as jnp

from models.config import DecoderConfig
from models.decoder import Decoder
from models.pure import Params, module

LOGITS_AT_ONCE = 2**26
"""How many logits (256 MiB in float32) training holds at a time; more are made and dropped in parts."""


def of_tokens(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """Float32 log-softmax of raw logits [..., V] at `tokens` [...]; no temperature is applied."""
    wide = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(wide, tokens[..., None], axis=-1, mode="clip")[..., 0]
    return chosen - jax.nn.logsumexp(wide, axis=-1)


def entropy(logits: jax.Array) -> jax.Array:
    """Entropy in nats of the distributions that raw logits [..., V] describe: [...]."""
    logs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    return -jnp.sum(jnp.exp(logs) * logs, axis=-1)


def token_logprobs(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    segments: jax.Array,
    *,
    remat: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Log-prob of each of `tokens` [B, T] given those before it, and the entropy of the distribution it came from.

    Both are float32 [B, T] and aligned with `tokens`; the first column, which nothing precedes, is 0. Values at padding
    and at the first token of a segment mean nothing: mask them. `segments` and `remat` as in `Decoder.hidden`.
    """
    decoder = module(config, params)
    hidden = decoder.hidden(tokens, positions, segments, remat=remat)[:, :-1]
    logs, entropies = _scores(decoder, hidden, tokens[:, 1:])
    shift = ((0, 0), (1, 0))
    return jnp.pad(logs, shift), jnp.pad(entropies, shift)


def _scores(decoder: Decoder, hidden: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log-probs and entropies [B, T] of `tokens` by the logits of `hidden` [B, T, hidden]."""

    def score(part: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        logits = decoder.head(part[0])
        return of_tokens(logits, part[1]), entropy(logits)

    size = max(1, LOGITS_AT_ONCE // decoder.config.vocab_size)
    if tokens.size <= size:
        return score((hidden, tokens))
    # Checkpointed: the backward pass makes the logits of each part again rather than keeping those of all.
    parts = _parts(hidden.reshape(tokens.size, -1), size), _parts(tokens.reshape(-1), size)
    logs, entropies = jax.lax.map(jax.checkpoint(score), parts)
    return _joined(logs, tokens.shape), _joined(entropies, tokens.shape)


def _parts(x: jax.Array, size: int) -> jax.Array:
    """x [N, ...] as [parts, size, ...], the last part filled up with zeros."""
    missing = -x.shape[0] % size
    return jnp.pad(x, ((0, missing), *[(0, 0)] * (x.ndim - 1))).reshape(-1, size, *x.shape[1:])


def _joined(parts: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return parts.reshape(-1)[: math.prod(shape)].reshape(shape)
