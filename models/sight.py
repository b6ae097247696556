"""What queries may see, in blocks of neighbouring queries: keys that none of a block sees are left out of the work.

Causal attention over a whole row sees half of its scores. Blocks save most of the other half, with fixed shapes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

BLOCKS = 6
"""The most blocks of a row: (1 + 1 / blocks) / 2 of the scores are made, and each block costs compile time."""
SHORTEST = 64
"""The fewest queries of a block, but for the last."""


class Sight(NamedTuple):
    """What a block of neighbouring queries may see."""

    queries: slice
    keys: slice
    mask: jax.Array
    """[B, queries, keys], or broadcast to it: which of these keys each of these queries sees."""


def over_row(segments: jax.Array, window: int | None) -> tuple[Sight, ...]:
    """A row's tokens see those before them in their segment, and no more than the last `window`, themselves included.

    `segments` [B, T] says who belongs together.
    """
    length = segments.shape[1]
    size = max(SHORTEST, -(-length // BLOCKS))
    return tuple(_block(segments, slice(i, min(i + size, length)), window) for i in range(0, length, size))


def _block(segments: jax.Array, queries: slice, window: int | None) -> Sight:
    keys = slice(0 if window is None else max(0, queries.start - window + 1), queries.stop)
    ago = jnp.arange(queries.start, queries.stop)[:, None] - jnp.arange(keys.start, keys.stop)
    same = segments[:, queries, None] == segments[:, None, keys]
    return Sight(queries, keys, same & _within(ago, window))


def beside_cache(
    lengths: jax.Array, slots: int, steps: jax.Array, places: int, window: int | None
) -> tuple[Sight, ...]:
    """The `steps` [C]-th tokens after the `lengths` [B] that a cache of so many slots holds see those, and of the
    `places` beside the cache, which hold the tokens after it, what is not after themselves."""
    old, new = jnp.arange(slots), steps[:, None] - jnp.arange(places)
    ago = lengths[:, None, None] + steps[:, None] - old
    cached = (old < lengths[:, None, None]) & _within(ago, window)
    beside = jnp.broadcast_to(_within(new, window), (len(lengths), *new.shape))
    return (Sight(slice(None), slice(None), jnp.concatenate([cached, beside], axis=-1)),)


def _within(ago: jax.Array, window: int | None) -> jax.Array:
    """Whether a key so many places before a query is seen."""
    return ago >= 0 if window is None else (ago >= 0) & (ago < window)
