"""Trajectories as padded arrays of one fixed shape, so that the jitted step compiles once."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from schemas.errors import RunStopped
from schemas.trajectory import Trajectory

Array = TypeVar("Array")
"""NumPy's outside a jitted step, JAX's inside."""


class Batch(NamedTuple, Generic[Array]):
    """Arrays of R rows and T tokens, padded to the right; rows of weight 0 are padding."""

    tokens: Array
    """[R, T] int32."""
    valid: Array
    """[R, T] bool: false at padding."""
    mask: Array
    """[R, T] float32: 1 where the policy sampled the token."""
    behaviour: Array
    """[R, T] float32: log-probs under the policies that sampled."""
    reference: Array
    """[R, T] float32: log-probs under the policy that divergence is measured from; 0 where none is."""
    advantages: Array
    """[R] float32."""
    weights: Array
    """[R] float32: 1 for trained rows, 0 for padding rows."""


def pad_batch(
    trajectories: Sequence[Trajectory], advantages: Sequence[float], rows: int, length: int
) -> Batch[np.ndarray]:
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


def empty(rows: int, length: int) -> Batch[np.ndarray]:
    """A batch of padding. Its first token counts as valid, so that no softmax is over nothing."""
    valid = np.zeros((rows, length), np.bool_)
    valid[:, 0] = True
    return Batch(
        tokens=np.zeros((rows, length), np.int32),
        valid=valid,
        mask=np.zeros((rows, length), np.float32),
        behaviour=np.zeros((rows, length), np.float32),
        reference=np.zeros((rows, length), np.float32),
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
