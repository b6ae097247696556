"""Causal attention with grouped key-value heads (Ainslie et al., 2023, arXiv:2305.13245)."""

from collections.abc import Callable, Sequence
from itertools import accumulate

import jax
import jax.numpy as jnp
from flax import nnx

from models.config import DecoderConfig
from models.layers import PRECISION, Linear, RMSNorm, softcap
from models.rope import rotate
from models.sight import Sight

Part = tuple[jax.Array, jax.Array]
"""Keys [B, K, head_dim, S] and values [B, K, S, head_dim] of some tokens."""
Place = Callable[[jax.Array, jax.Array], Sequence[Part]]
"""Takes the new tokens' keys and values and returns what the queries look at: themselves, caches, or both in parts."""


class Attention(nnx.Module):
    """Projects, rotates, attends over what `place` returns, projects back."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        width, hidden = config.num_attention_heads * config.head_dim, config.hidden_size
        kv_width = config.num_key_value_heads * config.head_dim
        scale, bias, own = config.initializer_range, config.switches.qkv_bias, config.switches
        self.config = config
        self.q_proj = Linear(hidden, width, scale=scale, rngs=rngs, bias=bias)
        self.k_proj = Linear(hidden, kv_width, scale=scale, rngs=rngs, bias=bias)
        self.v_proj = Linear(hidden, kv_width, scale=scale, rngs=rngs, bias=bias)
        self.o_proj = Linear(width, hidden, scale=config.residual_scale, rngs=rngs)
        if own.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps, unit_offset=own.unit_offset)
            self.k_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps, unit_offset=own.unit_offset)

    def __call__(
        self, x: jax.Array, turn: tuple[jax.Array, jax.Array], sights: Sequence[Sight], place: Place
    ) -> jax.Array:
        """x [B, T, hidden] → [B, T, hidden]; the blocks of `sights` are all queries in order."""
        rows, length, _ = x.shape
        split = lambda y: y.reshape(rows, length, -1, self.config.head_dim)  # noqa: E731
        query, key = split(self.q_proj(x)), split(self.k_proj(x))
        if self.config.switches.qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = rotate(query, turn), rotate(key, turn)
        parts = place(key.transpose(0, 2, 3, 1), split(self.v_proj(x)).transpose(0, 2, 1, 3))
        scale, cap = (self.config.query_scalar or self.config.head_dim) ** -0.5, self.config.attention_softcap
        blocks = [attend(query[:, s.queries], cut(parts, s), s.mask, scale=scale, cap=cap) for s in sights]
        mixed = blocks[0] if len(blocks) == 1 else jnp.concatenate(blocks, axis=1)
        return self.o_proj(mixed.reshape(rows, length, -1))


def attend(query: jax.Array, parts: Sequence[Part], mask: jax.Array, *, scale: float, cap: float | None) -> jax.Array:
    """Softmax attention: query [B, T, H, D] over the keys of all `parts`, S in all, mask [B, T, S] → [B, T, H, D].

    Head h reads key-value head h // (H / K). Scores are multiplied by `scale`, then capped. The softmax is in float32.
    """
    rows, length, heads, size = query.shape
    groups = heads // parts[0][0].shape[1]
    grouped = query.transpose(0, 2, 1, 3).reshape(rows, heads // groups, groups * length, size)
    scores = [jnp.matmul(grouped, keys, precision=PRECISION).astype(jnp.float32) * scale for keys, _ in parts]
    joined = softcap(jnp.concatenate(scores, axis=-1) if scores[1:] else scores[0], cap)
    hidden = jnp.where(mask, 0.0, jnp.finfo(jnp.float32).min)
    joined = joined.reshape(rows, heads // groups, groups, length, joined.shape[-1]) + hidden[:, None, None]
    weights = jnp.exp(joined - jax.lax.stop_gradient(jnp.max(joined, axis=-1, keepdims=True)))
    weights = weights.reshape(rows, heads // groups, groups * length, joined.shape[-1])
    ends = list(accumulate(keys.shape[3] for keys, _ in parts))[:-1]
    shares = jnp.split(weights, ends, axis=-1) if ends else [weights]
    products = [
        jnp.matmul(share.astype(values.dtype), values, precision=PRECISION)
        for share, (_, values) in zip(shares, parts, strict=True)
    ]
    # Divided after the sum over keys: there are fewer numbers to divide.
    mixed = (sum(products[1:], products[0]) / jnp.sum(weights, axis=-1, keepdims=True)).astype(products[0].dtype)
    return mixed.reshape(rows, heads, length, size).transpose(0, 2, 1, 3)


def cut(parts: Sequence[Part], sight: Sight) -> list[Part]:
    """The keys and values that a sight is of."""
    return [(keys[..., sight.keys], values[:, :, sight.keys]) for keys, values in parts]
