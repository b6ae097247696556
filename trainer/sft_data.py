"""Demonstrations in batches: in which order a supervised warm-up takes them, and how they lie in micro-batches."""

from collections.abc import Sequence

import numpy as np

from schemas import seeds
from trainer.batch import Batch, empty, place_rows
from trainer.packing import Layout, micro_batches
from trainer.streams import Example


def order(count: int, batch: int, steps: int, seed: int, shuffle: bool) -> np.ndarray:
    """[steps, batch] which examples each step takes: epoch after epoch, permuted by the seed or as they stand."""
    epochs = -(-steps * batch // count)
    rng = np.random.default_rng(seeds.derive("sft", seed))
    one = [rng.permutation(count) if shuffle else np.arange(count) for _ in range(epochs)]
    return np.concatenate(one)[: steps * batch].reshape(steps, batch)


def collate(examples: Sequence[Example], layout: Layout) -> list[Batch[np.ndarray]]:
    """Examples in micro-batches; only what the decoder sees and `mask` matter to SFT."""
    return [_part(rows, examples, layout) for rows in micro_batches([len(t) for t, _ in examples], layout)]


def _part(rows: Sequence[Sequence[int]], examples: Sequence[Example], layout: Layout) -> Batch[np.ndarray]:
    out = empty(layout)
    place_rows(out, [[examples[i][0] for i in row] for row in rows])
    for line, i in enumerate(i for row in rows for i in row):
        mask = examples[i][1]
        out.mask[line, : len(mask)], out.weights[line] = mask, 1.0
    return out
