"""Several updates on a batch: its groups dealt to mini-batches, and what the updates say of themselves as one step."""

from collections.abc import Sequence
from itertools import groupby

from trainer.assembler import Row

Dealt = tuple[tuple[Row, ...], tuple[float, ...]]
"""Rows and their advantages."""


def deal(rows: Sequence[Row], advantages: Sequence[float], count: int) -> list[Dealt]:
    """Whole groups, neighbours together, to at most `count` mini-batches whose numbers of groups differ by one at most.

    Rows of a group stand together. The first mini-batches are the larger ones, and none is empty.
    """
    pairs = list(zip(rows, advantages, strict=True))
    groups = [list(members) for _, members in groupby(pairs, key=lambda pair: pair[0].trajectory.group)]
    size, more = divmod(len(groups), count)
    out: list[Dealt] = []
    for number in range(min(count, len(groups))):
        taken, groups = groups[: size + (number < more)], groups[size + (number < more) :]
        chosen = [pair for group in taken for pair in group]
        out.append((tuple(row for row, _ in chosen), tuple(a for _, a in chosen)))
    return out


def together(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """The figures of a step: the mean over its updates; of a greatest value, the greatest."""
    names = updates[0]
    return {n: (max if n.endswith("_max") else _mean)([u[n] for u in updates]) for n in names}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
