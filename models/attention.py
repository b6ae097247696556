"""Causal attention with grouped key-value heads (Ainslie et al., 2023, arXiv:2305.13245)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from models.config import DecoderConfig
from models.layers import PRECISION, Linear
from models.rope import rotate

Place = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""Takes the new tokens' keys and values and returns those that the queries look at (themselves, or a cache)."""


class Attention(nnx.Module):
    """Projects, rotates, attends over what `place` returns, projects back."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        width, hidden = config.num_attention_heads * config.head_dim, config.hidden_size
        kv_width = config.num_key_value_heads * config.head_dim
        self.config = config
        self.q_proj = Linear(hidden, width, scale=config.initializer_range, rngs=rngs)
        self.k_proj = Linear(hidden, kv_width, scale=config.initializer_range, rngs=rngs)
        self.v_proj = Linear(hidden, kv_width, scale=config.initializer_range, rngs=rngs)
        self.o_proj = Linear(width, hidden, scale=config.residual_scale, rngs=rngs)

    def __call__(self, x: jax.Array, turn: tuple[jax.Array, jax.Array], mask: jax.Array, place: Place) -> jax.Array:
        """x [B, T, hidden] → [B, T, hidden]; `mask` [B, T, S] says which of the S keys each query may see."""
        rows, length, _ = x.shape
        split = lambda y: y.reshape(rows, length, -1, self.config.head_dim)  # noqa: E731
        query = rotate(split(self.q_proj(x)), turn)
        key = rotate(split(self.k_proj(x)), turn)
        keys, values = place(key.transpose(0, 2, 3, 1), split(self.v_proj(x)).transpose(0, 2, 1, 3))
        return self.o_proj(attend(query, keys, values, mask).reshape(rows, length, -1))


def attend(query: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax attention: query [B, T, H, D], keys [B, K, D, S], values [B, K, S, D], mask [B, T, S] → [B, T, H, D].

    Head h reads key-value head h // (H / K). The softmax is in float32.
    """
    rows, length, heads, size = query.shape
    groups = heads // keys.shape[1]
    grouped = query.transpose(0, 2, 1, 3).reshape(rows, keys.shape[1], groups * length, size)
    scores = jnp.matmul(grouped, keys, precision=PRECISION).astype(jnp.float32) * size**-0.5
    hidden = jnp.where(mask, 0.0, jnp.finfo(jnp.float32).min)
    scores = scores.reshape(rows, keys.shape[1], groups, length, -1) + hidden[:, None, None]
    weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
    mixed = jnp.matmul(weights.reshape(rows, keys.shape[1], groups * length, -1), values, precision=PRECISION)
    return mixed.reshape(rows, heads, length, size).transpose(0, 2, 1, 3)
