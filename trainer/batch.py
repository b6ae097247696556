"""Trajectories as padded arrays of one fixed shape, so that the jitted step compiles once."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.errors import RunStopped
from schemas.trajectory import Trajectory


class Batch(NamedTuple):
    """Arrays of R rows and T tokens, padded to the right; rows of weight 0 are padding."""

    tokens: NDArray[np.int32]
    """[R, T]"""
    valid: NDArray[np.bool_]
    """[R, T] false at padding."""
    mask: NDArray[np.float32]
    """[R, T] 1 where the policy sampled the token."""
    behaviour: NDArray[np.float32]
    """[R, T] log-probs under the policies that sampled."""
    advantages: NDArray[np.float32]
    """[R]"""
    weights: NDArray[np.float32]
    """[R] 1 for trained rows, 0 for padding rows."""


def pad_batch(trajectories: Sequence[Trajectory], advantages: Sequence[float], rows: int, length: int) -> Batch:
    """The trajectories in the order given, padded to [rows, length]. RunStopped for one that does not fit.

    No more trajectories than `rows`; advantages [len(trajectories)] are theirs, in the same order.
    """
    out = empty(rows, length)
    for i, (trajectory, advantage) in enumerate(zip(trajectories, advantages, strict=True)):
        size = len(trajectory.tokens)
        _check(trajectory, length)
        out.tokens[i, :size] = trajectory.tokens
        out.valid[i, :size] = True
        out.mask[i, :size] = trajectory.mask
        out.behaviour[i, :size] = trajectory.logprobs
        out.advantages[i], out.weights[i] = advantage, 1.0
    return out


def empty(rows: int, length: int) -> Batch:
    """A batch of padding. Its first token counts as valid, so that no softmax is over nothing."""
    valid = np.zeros((rows, length), np.bool_)
    valid[:, 0] = True
    return Batch(
        tokens=np.zeros((rows, length), np.int32),
        valid=valid,
        mask=np.zeros((rows, length), np.float32),
        behaviour=np.zeros((rows, length), np.float32),
        advantages=np.zeros(rows, np.float32),
        weights=np.zeros(rows, np.float32),
    )


def _check(trajectory: Trajectory, length: int) -> None:
    if len(trajectory.tokens) > length:
        raise RunStopped(
            f"trajectory {trajectory.id} has {len(trajectory.tokens)} tokens, but rollout.max_length is {length}: "
            f"workers and learner were started with different settings"
        )
    if trajectory.segment_starts != (0,):
        raise RunStopped(
            f"trajectory {trajectory.id} has {len(trajectory.segment_starts)} segments (a rewritten history), "
            f"but one is trained per trajectory: choose a chat format that only extends the stream"
        )
