"""Trajectories as arrays of fixed shapes, so that the jitted step compiles once.

The decoder sees R rows of T tokens, each with one trajectory or several; losses see N lines of L tokens, one trajectory
each. `unpacked` leads from the one to the other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from schemas.errors import RunStopped
from schemas.trajectory import Trajectory
from trainer.packing import Layout, micro_batches

Array = TypeVar("Array")
"""NumPy's outside a jitted step, JAX's inside."""


class Batch(NamedTuple, Generic[Array]):
    """One micro-batch. Lines of weight 0 are padding, and so are tokens of segment 0."""

    tokens: Array
    """[R, T] int32."""
    segments: Array
    """[R, T] int32: from 1, which of the segments of the row's trajectories a token belongs to; 0 at padding."""
    positions: Array
    """[R, T] int32: a token's place in its segment."""
    places: Array
    """[N, L] int32: where each token of a line stands among the R x T; R x T where there is none."""
    mask: Array
    """[N, L] float32: 1 where the policy sampled the token."""
    behaviour: Array
    """[N, L] float32: log-probs under the policies that sampled."""
    reference: Array
    """[N, L] float32: log-probs under the policy that divergence is measured from; 0 where none is."""
    proximal: Array
    """[N, L] float32: log-probs under the learner's policy at the step's start; 0 where the step makes one update."""
    advantages: Array
    """[N] float32; [N, L] where a critic tells tokens apart."""
    weights: Array
    """[N] float32: 1 for trained lines, 0 for padding."""

    @property
    def valid(self) -> Any:
        """[R, T] bool: false at padding."""
        return self.segments > 0  # type: ignore[operator]


@dataclass(frozen=True)
class Part:
    """A micro-batch and whose lines it has."""

    batch: Batch[np.ndarray]
    chosen: tuple[int, ...]
    """Positions, in the batch that was laid out, of the trajectories in its first lines."""


def unpacked(values: jax.Array, places: jax.Array) -> jax.Array:
    """[R, T] values of tokens as [N, L], 0 where there is no token and at each line's first, which nothing precedes."""
    lines = jnp.take(values.reshape(-1), places, mode="fill", fill_value=0)
    return lines.at[:, 0].set(0)


def lay_out(trajectories: Sequence[Trajectory], advantages: Sequence[float], layout: Layout) -> list[Part]:
    """The batch in micro-batches. RunStopped for a trajectory that does not fit.

    `advantages` [len(trajectories)] are theirs, in the same order.
    """
    for trajectory in trajectories:
        _check(trajectory, layout)
    lengths = [len(t.tokens) for t in trajectories]
    return [_part(rows, trajectories, advantages, layout) for rows in micro_batches(lengths, layout)]


def _part(
    rows: Sequence[Sequence[int]], trajectories: Sequence[Trajectory], advantages: Sequence[float], layout: Layout
) -> Part:
    out = empty(layout)
    chosen = [i for row in rows for i in row]
    starts = [trajectories[i].segment_starts for i in chosen]
    place_rows(out, [[trajectories[i].tokens for i in row] for row in rows], starts)
    for line, i in enumerate(chosen):
        trajectory, size = trajectories[i], len(trajectories[i].tokens)
        out.mask[line, :size] = trajectory.mask
        out.behaviour[line, :size] = trajectory.logprobs
        out.advantages[line], out.weights[line] = advantages[i], 1.0
    return Part(out, tuple(chosen))


def place_rows(
    out: Batch[np.ndarray], rows: Sequence[Sequence[Sequence[int]]], starts: Sequence[Sequence[int]] = ()
) -> None:
    """Write streams of tokens into the rows that they share, and where they stand into `places`, line after line.

    `starts`: for each line where its segments start, 0 first. Left out: every line is one segment.
    """
    for line, (row, start, stream) in enumerate(_placed(rows)):
        size, span = len(stream), np.s_[row, start : start + len(stream)]
        own = np.asarray(starts[line] if starts else (0,))
        number = np.searchsorted(own, np.arange(size), side="right")
        out.tokens[span] = stream
        out.segments[span] = (out.segments[row, start - 1] if start else 0) + number
        out.positions[span] = np.arange(size) - own[number - 1]
        out.places[line, :size] = row * out.tokens.shape[1] + start + np.arange(size)


def _placed(rows: Sequence[Sequence[Sequence[int]]]) -> Iterator[tuple[int, int, Sequence[int]]]:
    """(row, first token's place, stream) of every stream."""
    for row, streams in enumerate(rows):
        start = 0
        for stream in streams:
            yield row, start, stream
            start += len(stream)


def empty(layout: Layout) -> Batch[np.ndarray]:
    """A micro-batch of padding."""
    rows, lines = (layout.rows, layout.tokens), (layout.lines, layout.length)
    return Batch(
        tokens=np.zeros(rows, np.int32),
        segments=np.zeros(rows, np.int32),
        positions=np.zeros(rows, np.int32),
        places=np.full(lines, layout.rows * layout.tokens, np.int32),
        mask=np.zeros(lines, np.float32),
        behaviour=np.zeros(lines, np.float32),
        reference=np.zeros(lines, np.float32),
        proximal=np.zeros(lines, np.float32),
        advantages=np.zeros(layout.lines, np.float32),
        weights=np.zeros(layout.lines, np.float32),
    )


def _check(trajectory: Trajectory, layout: Layout) -> None:
    if len(trajectory.tokens) > layout.length:
        raise RunStopped(
            f"trajectory {trajectory.id} has {len(trajectory.tokens)} tokens, but rollout.max_length is "
            f"{layout.length}: workers and learner were started with different settings"
        )
    starts = trajectory.segment_starts
    rising = starts[:1] == (0,) and all(a < b for a, b in pairwise((*starts, len(trajectory.tokens))))
    if not rising or any(trajectory.mask[start] for start in starts):
        raise RunStopped(
            f"trajectory {trajectory.id} has segments that start at {list(starts)} in {len(trajectory.tokens)} tokens: "
            f"they must begin at 0, rise, and start with a token that was not sampled"
        )
