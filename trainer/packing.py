"""Which trajectories share a row: first-fit decreasing, so that rows are full and the same batch is always laid alike.

A decoder's work goes by rows x tokens, padding included. Episodes differ much in length, so several of them in one row
leave little padding. Attention and positions are kept apart by segment, and everything after the decoder sees one
trajectory a line again, so what is computed does not depend on who shares a row with whom.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.rl import RL
from schemas.warm_ups import SFT

ROW_TRAJECTORIES = 32
"""The most trajectories in a packed row: it bounds the lines of a micro-batch, whose number is fixed."""


@dataclass(frozen=True)
class Layout:
    """The fixed shapes of a micro-batch."""

    rows: int
    """R: rows of one forward pass."""
    tokens: int
    """T: tokens of a row."""
    length: int
    """L: tokens of the longest trajectory; at most T."""
    most: int
    """Trajectories that may share a row."""
    lines: int
    """N: trajectories that may be in one forward pass."""


def padded(rows: int, length: int) -> Layout:
    """A row of its own for every trajectory."""
    return Layout(rows, length, length, 1, rows)


def packed(rows: int, tokens: int, length: int, count: int) -> Layout:
    """Rows of `tokens` tokens shared by a batch of `count` trajectories of at most `length` tokens."""
    return Layout(rows, tokens, length, ROW_TRAJECTORIES, min(count, rows * ROW_TRAJECTORIES))


def rl_layout(rl: RL, length: int) -> Layout:
    """What `rl.row_tokens` and `rl.micro_batch` ask for; `length` is `rollout.max_length`."""
    count = rl.groups_per_batch * rl.group_size
    if rl.row_tokens is None:
        return padded(rl.micro_batch or count, length)
    return packed(rl.micro_batch or max(1, count // 8), rl.row_tokens, length, count)


def sft_layout(stage: SFT) -> Layout:
    """What the `row_tokens` of a supervised warm-up asks for."""
    if stage.row_tokens is None:
        return padded(stage.batch_size, stage.max_length)
    return packed(max(1, stage.batch_size // 8), stage.row_tokens, stage.max_length, stage.batch_size)


def micro_batches(lengths: Sequence[int], layout: Layout) -> list[list[list[int]]]:
    """For each micro-batch its rows, for each row the positions of its trajectories. No length is above `tokens`.

    >>> micro_batches([2, 5, 3], packed(rows=1, tokens=5, length=5, count=3))
    [[[1]], [[2, 0]]]
    """
    rows = _rows(lengths, layout)
    return [rows[i : i + layout.rows] for i in range(0, len(rows), layout.rows)]


def _rows(lengths: Sequence[int], layout: Layout) -> list[list[int]]:
    if layout.most == 1:
        return [[i] for i in range(len(lengths))]
    rows: list[list[int]] = []
    free: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        row = _first_fit(free, rows, lengths[i], layout.most)
        if row == len(rows):
            rows.append([])
            free.append(layout.tokens)
        rows[row].append(i)
        free[row] -= lengths[i]
    return rows


def _first_fit(free: Sequence[int], rows: Sequence[Sequence[int]], size: int, most: int) -> int:
    fitting = (r for r, left in enumerate(free) if left >= size and len(rows[r]) < most)
    return next(fitting, len(rows))
