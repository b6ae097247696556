"""Slots as the arrays of one dispatch. Few shapes, so that few programs are compiled however lengths vary."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from rollout.jax_kernels import Slots
from rollout.jax_slots import Job, Slot

CHUNKS = (16, 64, 256)
"""Tokens per row of one pre-fill dispatch, where the context is not shorter."""
SPAN = 64
"""Cache places that decoding attends to at least, where the context is not shorter."""
ROWS = 8
"""Rows of one pre-fill dispatch."""
STOPS = 4
"""Stop tokens that a request may name."""


class Chunk(NamedTuple):
    """The next prompt tokens of some slots, P = ROWS and C one of `chunk_sizes`."""

    rows: np.ndarray
    """[P] cache rows; out of range where there is none."""
    tokens: np.ndarray
    """[P, C]"""
    lengths: np.ndarray
    """[P] tokens that the row holds."""
    counts: np.ndarray
    """[P] how many of the C tokens are real."""


def chunk_sizes(context: int) -> list[int]:
    """Every width that `next_chunk` may choose."""
    return sorted({min(size, context) for size in CHUNKS})


def empty_chunk(size: int, slots: int) -> Chunk:
    """A chunk that writes nothing."""
    return Chunk(np.full(ROWS, slots, np.int32), *(np.zeros(s, np.int32) for s in ((ROWS, size), ROWS, ROWS)))


def next_chunk(filling: list[Slot], slots: int, context: int) -> Chunk:
    """The next prompt tokens of the first ROWS slots, which are taken for written from here on."""
    chosen, sizes = filling[:ROWS], chunk_sizes(context)
    longest = max(len(s.pending) for s in chosen)
    size = next((c for c in sizes if c >= longest), sizes[-1])
    chunk = empty_chunk(size, slots)
    for i, slot in enumerate(chosen):
        part, slot.pending = slot.pending[:size], slot.pending[size:]
        chunk.rows[i], chunk.lengths[i], chunk.counts[i] = slot.index, len(slot.cached), len(part)
        chunk.tokens[i, : len(part)] = part
        slot.cached += part
    return chunk


def decode_slots(decoding: list[tuple[Slot, Job]], slots: int) -> Slots:
    """What decoding needs of each of the engine's slots; those not in `decoding` are inactive."""
    token, length, budget = (np.zeros(slots, np.int32) for _ in range(3))
    active, seed = np.zeros(slots, bool), np.zeros(slots, np.uint32)
    temperature, top_p, top_k = np.zeros(slots, np.float32), np.ones(slots, np.float32), np.zeros(slots, np.int32)
    stop_ids = np.full((slots, STOPS), -1, np.int32)
    for slot, job in decoding:
        i, sampling = slot.index, job.request.sampling
        token[i], length[i], budget[i] = job.last, len(slot.cached), job.budget - len(job.tokens)
        active[i], seed[i] = True, job.request.seed
        temperature[i], top_p[i], top_k[i] = sampling.temperature, sampling.top_p, min(sampling.top_k, 2**31 - 1)
        stop_ids[i, : len(sampling.stop_ids)] = sampling.stop_ids
    return Slots(*map(jnp.asarray, (token, length, active, budget, temperature, top_p, top_k, seed, stop_ids)))


def span(decoding: list[tuple[Slot, Job]], steps: int, context: int) -> int:
    """Cache places to attend to: the smallest of `spans` that is enough for `steps` more tokens."""
    needed = max(len(slot.cached) for slot, _ in decoding) + steps
    return next((s for s in spans(context) if s >= needed), context)


def spans(context: int) -> list[int]:
    """Every number that `span` may choose: SPAN and its doubles, and the whole context."""
    doubles = [SPAN << i for i in range(context.bit_length()) if SPAN << i < context]
    return [*doubles, context]
