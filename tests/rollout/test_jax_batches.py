"""The shapes of dispatches: few, and always large enough."""

import random

import pytest

from rollout.jax_batches import decode_shape, decode_shapes, next_chunk, shapes
from rollout.jax_slots import Slot


@pytest.mark.parametrize("context", [3, 20, 64, 100, 256, 300, 4096])
@pytest.mark.parametrize("slots", [1, 2, 3, 6, 32, 128])
def test_decoding_finds_the_smallest_shape_for_any_rows(slots, context):
    draw, found = random.Random(f"{slots} {context}"), decode_shapes(slots, context)
    assert (slots, context) in found
    assert len(found) <= 2 * context.bit_length() + 4
    for _ in range(50):
        rows = [(Slot(i, cached=[0] * draw.randrange(context)), None) for i in range(slots) if draw.random() < 0.5] or [
            (Slot(0), None)
        ]
        shape = decode_shape(rows, slots, context)
        assert shape in found
        assert shape[0] >= len(rows)
        assert shape[1] >= max(len(s.cached) for s, _ in rows)


@pytest.mark.parametrize("context", [3, 20, 64, 100, 256, 300, 4096])
def test_pre_fill_writes_every_prompt_token_once_and_in_order(context):
    draw, found = random.Random(context), shapes(context)
    for _ in range(20):
        prompts = [
            [draw.randrange(99) for _ in range(draw.randrange(1, context))] for _ in range(draw.randrange(1, 20))
        ]
        cut = [draw.randrange(len(p)) if draw.random() < 0.5 else 0 for p in prompts]
        slots = [Slot(i, cached=p[:c], pending=p[c:]) for i, (p, c) in enumerate(zip(prompts, cut, strict=True))]
        while filling := [s for s in slots if s.pending]:
            alike = [s for s in filling if bool(s.cached) == bool(filling[0].cached)]
            before = [len(s.cached) for s in alike]
            chunk, shape = next_chunk(filling, 32, context)
            assert shape in found
            assert chunk.tokens.shape == shape[:2]
            assert shape.span >= max(chunk.lengths)
            for i, (slot, start) in enumerate(zip(alike[: shape.rows], before, strict=False)):
                assert (chunk.rows[i], chunk.lengths[i]) == (slot.index, start)
                assert chunk.tokens[i, : chunk.counts[i]].tolist() == prompts[slot.index][start : len(slot.cached)]
        assert [s.cached for s in slots] == prompts
