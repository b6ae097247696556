"""Batches: rows in the order given, at fixed shapes, with sentences for what does not fit."""

import numpy as np
import pytest
from support.protocol import trajectory

from schemas.errors import RunStopped
from trainer.batch import empty, pad_batch


def test_rows_stand_in_the_order_given_and_the_rest_is_padding():
    long = trajectory(0, 1, tokens=(5, 6, 7), mask=(False, True, True), logprobs=(0.0, -1.0, -2.0))
    found = pad_batch([long, trajectory(0, 0)], [0.5, -0.5], rows=3, length=6)
    assert found.tokens.tolist() == [[5, 6, 7, 0, 0, 0], [1, 2, 3, 4, 0, 0], [0] * 6]
    assert found.valid.sum(axis=1).tolist() == [3, 4, 1]
    assert found.mask.tolist() == [[0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0] * 6]
    assert found.behaviour[0].tolist() == [0, -1, -2, 0, 0, 0]
    assert found.advantages.tolist() == [0.5, -0.5, 0]
    assert found.weights.tolist() == [1, 1, 0]


def test_the_shapes_do_not_depend_on_the_rows():
    def described(batch):
        return [(a.shape, a.dtype) for a in batch]

    assert described(pad_batch([trajectory(0, 0)], [1.0], 4, 8)) == described(empty(4, 8))
    assert all(isinstance(a, np.ndarray) for a in empty(4, 8))


def test_a_trajectory_that_is_too_long_is_named():
    with pytest.raises(RunStopped, match=r"trajectory 3-1-0 has 4 tokens, but rollout\.max_length is 3"):
        pad_batch([trajectory(3, 1)], [1.0], 2, 3)


def test_a_rewritten_history_is_refused():
    with pytest.raises(RunStopped, match="trajectory 3-1-0 has 2 segments"):
        pad_batch([trajectory(3, 1, segment_starts=(0, 2))], [1.0], 2, 8)
