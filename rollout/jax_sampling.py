"""Which token a row of logits becomes: temperature, truncation to the likeliest, and noise from a seed.

Truncation looks for its threshold by bisection over the bits of the numbers: exact, 32 passes over the logits, and no
sort, which XLA runs on one core. It is skipped, not masked, in a step where no row asks for it.
"""

import jax
import jax.numpy as jnp


def sample(
    logits: jax.Array, temperature: jax.Array, top_p: jax.Array, top_k: jax.Array, seed: jax.Array, position: jax.Array
) -> jax.Array:
    """[R, V] logits → [R] tokens by the Gumbel-max trick, with [R] of everything else.

    The noise of a row depends on its seed and position alone. At temperature 0 the likeliest token is taken.
    """
    warm = temperature > 0
    scaled = logits / jnp.where(warm, temperature, 1.0)[:, None]
    cut = warm & ((top_p < 1) | (top_k > 0))
    scaled = jax.lax.cond(jnp.any(cut), lambda x: truncated(x, top_p, top_k), lambda x: x, scaled)
    noisy = scaled + gumbel(seed, position, logits.shape[-1])
    return jnp.argmax(jnp.where(warm[:, None], noisy, logits), axis=-1).astype(jnp.int32)


def truncated(logits: jax.Array, top_p: jax.Array, top_k: jax.Array) -> jax.Array:
    """[R, V] logits with -inf at all but each row's `top_k` likeliest tokens (0: all), then at all but the fewest of
    those whose probability reaches `top_p` (1: all). Tokens exactly as likely as the last one kept are kept too."""
    ordered, one = _ordered(logits), jnp.ones_like(logits)
    size = logits.shape[-1]
    count = jnp.where(top_k > 0, jnp.minimum(top_k, size), size).astype(logits.dtype)
    logits = jnp.where(ordered >= _threshold(ordered, one, count)[:, None], logits, -jnp.inf)
    mass = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    nucleus = ordered >= _threshold(ordered, mass, top_p * jnp.sum(mass, axis=-1))[:, None]
    return jnp.where(nucleus | (top_p >= 1)[:, None], logits, -jnp.inf)


def _ordered(x: jax.Array) -> jax.Array:
    """uint32 that are ordered as the float32 `x` are."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _threshold(ordered: jax.Array, mass: jax.Array, wanted: jax.Array) -> jax.Array:
    """The largest number [R] such that the `mass` [R, V] of the entries at or above it is still `wanted` [R]."""

    def narrowed(bit: jax.Array, found: jax.Array) -> jax.Array:
        tried = found | (jnp.uint32(1 << 31) >> bit.astype(jnp.uint32))
        above = jnp.sum(jnp.where(ordered >= tried[:, None], mass, 0), axis=-1)
        return jnp.where(above >= wanted, tried, found)

    return jax.lax.fori_loop(0, 32, narrowed, jnp.zeros(ordered.shape[0], jnp.uint32))


def gumbel(seed: jax.Array, position: jax.Array, size: int) -> jax.Array:
    """Standard Gumbel noise [R, size] decided by `seed` and `position` [R] alone.

    A hash of (seed, position, place) by two rounds of MurmurHash3's finaliser, in place of JAX's threefry, which took a
    quarter of a decoding step of a small model.
    """
    row = _mixed(seed.astype(jnp.uint32) ^ _mixed(position.astype(jnp.uint32) + jnp.uint32(0x9E3779B9)))
    place = jnp.arange(size, dtype=jnp.uint32) * jnp.uint32(0x9E3779B1)
    bits = _mixed(_mixed(row[:, None] ^ place) + _mixed(row ^ jnp.uint32(0x85EBCA77))[:, None])
    uniform = ((bits >> 8).astype(jnp.float32) + 0.5) * 2.0**-24
    return -jnp.log(-jnp.log(uniform))


def _mixed(x: jax.Array) -> jax.Array:
    """A bijection of uint32 in which every bit of the input moves half of the output's (Appleby, MurmurHash3)."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
