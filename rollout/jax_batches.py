"""Slots as the arrays of one dispatch. Few shapes, so few programs are compiled however lengths and numbers vary."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rollout.jax_kernels import Slots
from rollout.jax_slots import Job, Slot

ROWS = 8
"""Rows of one dispatch of pre-fill or copying, at most."""
FEW = 2
"""Rows of one dispatch, at least: a product with a single row is computed, and rounded, in another way."""
SPAN = 64
"""Cache places that decoding attends to at least, where the context is not shorter."""
STOPS = 4
"""Stop tokens that a request may name."""


class Shape(NamedTuple):
    """A program of pre-fill: how many rows, tokens per row, and cache places that they look at."""

    rows: int
    tokens: int
    span: int


class Chunk(NamedTuple):
    """The next prompt tokens of some slots, in one of the shapes."""

    rows: np.ndarray
    """[P] cache rows; out of range where there is none."""
    tokens: np.ndarray
    """[P, C]"""
    lengths: np.ndarray
    """[P] tokens that the row holds."""
    counts: np.ndarray
    """[P] how many of the C tokens are real."""


def shapes(context: int) -> list[Shape]:
    """Every shape that `next_chunk` may choose: few rows or many; many also for little or nothing in the cache."""
    short, middle, long = _sizes(context)
    found = [(FEW, short, context), (ROWS, short, context), (FEW, middle, context), (ROWS, middle, context)]
    found += [(ROWS, middle, 0), (ROWS, middle, min(SPAN, context)), (FEW, long, context)]
    return [Shape(*shape) for shape in dict.fromkeys(found)]


def _sizes(context: int) -> tuple[int, int, int]:
    return min(16, context), min(64, context), min(256, context)


def empty_chunk(shape: Shape, slots: int) -> Chunk:
    """A chunk that writes nothing."""
    rows, tokens, _ = shape
    return Chunk(np.full(rows, slots, np.int32), *(np.zeros(s, np.int32) for s in ((rows, tokens), rows, rows)))


def next_chunk(filling: Sequence[Slot], slots: int, context: int) -> tuple[Chunk, Shape]:
    """The next prompt tokens of the first slot and of others like it, which are taken for written from here on."""
    alike = [s for s in filling if bool(s.cached) == bool(filling[0].cached)]
    shape = _shape(alike, context)
    chunk = empty_chunk(shape, slots)
    for i, slot in enumerate(alike[: shape.rows]):
        part, slot.pending = slot.pending[: shape.tokens], slot.pending[shape.tokens :]
        chunk.rows[i], chunk.lengths[i], chunk.counts[i] = slot.index, len(slot.cached), len(part)
        chunk.tokens[i, : len(part)] = part
        slot.cached += part
    return chunk, shape


def _shape(filling: Sequence[Slot], context: int) -> Shape:
    """The longest shape for a few long prompts, else the one that holds the most rows, or few if there are few."""
    short, middle, long = _sizes(context)
    if max(len(s.pending) for s in filling[:FEW]) > max(middle, long // 2):
        return _narrow(filling[:FEW], context, FEW, long)
    rows = FEW if len(filling) <= FEW else ROWS
    longest = max(len(s.pending) for s in filling[:rows])
    return _narrow(filling[:rows], context, rows, short if longest <= short else middle)


def _narrow(chosen: Sequence[Slot], context: int, rows: int, tokens: int) -> Shape:
    """The shape that looks at the least of the cache, and at all that the slots have there."""
    cached = max(len(s.cached) for s in chosen)
    return min(s for s in shapes(context) if s[:2] == (rows, tokens) and s.span >= cached)


def decode_shapes(slots: int, context: int) -> list[tuple[int, int]]:
    """Every (rows, span) that `decode_shape` may choose. Rows: all slots, a quarter of them, and so on. Spans: SPAN and
    its doubles, and the whole context, but long ones only where there are few rows: they cost little. Half of the slots
    for the whole context only: each shape is compiled at the start."""
    doubles = [SPAN << i for i in range(context.bit_length()) if SPAN << i < context]
    buckets = [slots]
    while buckets[-1] > FEW:
        buckets.append(max(FEW, -(-buckets[-1] // 4)))
    found = [(rows, span) for rows in buckets for span in (*doubles, context) if span in _wide(rows, slots, context)]
    half = (-(-slots // 2), context)
    return [*found, half] if FEW < half[0] < slots else found


def _wide(rows: int, slots: int, context: int) -> range:
    least = min(context, SPAN * slots // rows)
    return range(least, context + 1)


def decode_shape(decoding: Sequence[tuple[Slot, Job]], slots: int, context: int) -> tuple[int, int]:
    """The smallest shape that holds these rows and what they have cached."""
    needed = max(len(slot.cached) for slot, _ in decoding)
    return min(s for s in decode_shapes(slots, context) if s[0] >= len(decoding) and s[1] >= needed)


def decode_slots(
    decoding: Sequence[tuple[Slot, Job]], rows: int, slots: int
) -> tuple[np.ndarray | None, Slots, list[int]]:
    """Which cache rows decode, `rows` in all, what decoding needs of them, and the place of each of `decoding` among
    them. Others are inactive. None in place of the cache rows: all in order."""
    whole = rows == slots
    places = [slot.index for slot, _ in decoding] if whole else list(range(len(decoding)))
    index = np.full(rows, slots, np.int32)
    token, length, budget = (np.zeros(rows, np.int32) for _ in range(3))
    active, seed = np.zeros(rows, bool), np.zeros(rows, np.uint32)
    temperature, top_p, top_k = np.zeros(rows, np.float32), np.ones(rows, np.float32), np.zeros(rows, np.int32)
    stop_ids = np.full((rows, STOPS), -1, np.int32)
    for i, (slot, job) in zip(places, decoding, strict=True):
        sampling, index[i] = job.request.sampling, slot.index
        token[i], length[i], budget[i] = job.last, len(slot.cached), job.budget - len(job.tokens)
        active[i], seed[i] = True, job.request.seed
        temperature[i], top_p[i], top_k[i] = sampling.temperature, sampling.top_p, min(sampling.top_k, 2**31 - 1)
        stop_ids[i, : len(sampling.stop_ids)] = sampling.stop_ids
    asked = Slots._make((token, length, active, budget, temperature, top_p, top_k, seed, stop_ids))
    return None if whole else index, asked, places


def copies(pairs: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.int32]:
    """At most ROWS pairs of cache rows, from and to, as `copy` takes them."""
    out = np.zeros((ROWS, 2), np.int32)
    out[: len(pairs)] = pairs or np.zeros((0, 2))
    return out, np.int32(len(pairs))
