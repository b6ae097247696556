"""Batches: where tokens stand in the rows that they share, at fixed shapes, with sentences for what does not fit."""

import numpy as np
import pytest
from support.protocol import trajectory

from schemas.errors import RunStopped
from trainer.batch import empty, lay_out
from trainer.packing import ROW_TRAJECTORIES, micro_batches, packed, padded

SHORT = trajectory(0, 1, tokens=(5, 6, 7), mask=(False, True, True), logprobs=(0.0, -1.0, -2.0))
LONG = trajectory(0, 0)
APART = {"logprobs": (0.0, -1.0, -1.0, 0.0, -1.0), "segment_starts": (0, 3)}


def test_trajectories_stand_in_the_order_given_and_the_rest_is_padding():
    (part,) = lay_out([SHORT, LONG], [0.5, -0.5], padded(3, 6))
    found = part.batch
    assert part.chosen == (0, 1)
    assert found.tokens.tolist() == [[5, 6, 7, 0, 0, 0], [1, 2, 3, 4, 0, 0], [0] * 6]
    assert (found.segments > 0).sum(axis=1).tolist() == [3, 4, 0]
    assert found.mask.tolist() == [[0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0] * 6]
    assert found.behaviour[0].tolist() == [0, -1, -2, 0, 0, 0]
    assert found.advantages.tolist() == [0.5, -0.5, 0]
    assert found.weights.tolist() == [1, 1, 0]


def test_trajectories_that_share_a_row_keep_lines_of_their_own():
    (part,) = lay_out([SHORT, LONG, SHORT], [0.5, -0.5, 1.0], packed(2, 8, 4, 3))
    found = part.batch
    assert part.chosen == (1, 0, 2)
    assert found.tokens.tolist() == [[1, 2, 3, 4, 5, 6, 7, 0], [5, 6, 7, 0, 0, 0, 0, 0]]
    assert found.segments.tolist() == [[1, 1, 1, 1, 2, 2, 2, 0], [1, 1, 1, 0, 0, 0, 0, 0]]
    assert found.positions[0].tolist() == [0, 1, 2, 3, 0, 1, 2, 0]
    assert found.places.tolist() == [[0, 1, 2, 3], [4, 5, 6, 16], [8, 9, 10, 16]]
    assert found.mask.tolist() == [[0, 0, 1, 1], [0, 1, 1, 0], [0, 1, 1, 0]]
    assert found.advantages.tolist() == [-0.5, 0.5, 1.0]


def test_the_shapes_do_not_depend_on_the_trajectories():
    def described(batch):
        return [(a.shape, a.dtype) for a in batch]

    for layout in (padded(2, 8), packed(2, 16, 8, 100)):
        for count in (1, 5):
            for part in lay_out([LONG] * count, [1.0] * count, layout):
                assert described(part.batch) == described(empty(layout))


def test_packing_leaves_little_padding_and_no_row_too_full():
    lengths = [int(n) for n in np.random.default_rng(0).lognormal(4, 1, 300).clip(8, 512)]
    rows = [row for part in micro_batches(lengths, packed(4, 512, 512, 300)) for row in part]
    assert sorted(i for row in rows for i in row) == list(range(300))
    assert all(sum(lengths[i] for i in row) <= 512 and len(row) <= ROW_TRAJECTORIES for row in rows)
    assert sum(lengths) / (len(rows) * 512) > 0.95
    assert rows == [row for part in micro_batches(lengths, packed(4, 512, 512, 300)) for row in part]


def test_many_short_trajectories_open_another_row():
    count = ROW_TRAJECTORIES + 1
    ((one, other),) = micro_batches([2] * count, packed(2, 512, 512, count))
    assert (len(one), len(other)) == (ROW_TRAJECTORIES, 1)


def test_a_trajectory_that_is_too_long_is_named():
    for layout in (padded(2, 3), packed(2, 8, 3, 4)):
        with pytest.raises(RunStopped, match=r"trajectory 3-1-0 has 4 tokens, but rollout\.max_length is 3"):
            lay_out([trajectory(3, 1)], [1.0], layout)


def test_segments_of_a_trajectory_stand_behind_each_other_and_apart():
    branched = trajectory(0, 1, tokens=(1, 2, 3, 1, 4), mask=(False, True, True, False, True), **APART)
    (part,) = lay_out([LONG, branched], [0.5, 1.0], packed(1, 12, 6, 2))
    found = part.batch
    assert part.chosen == (1, 0)
    assert found.tokens.tolist() == [[1, 2, 3, 1, 4, 1, 2, 3, 4, 0, 0, 0]]
    assert found.segments.tolist() == [[1, 1, 1, 2, 2, 3, 3, 3, 3, 0, 0, 0]]
    assert found.positions.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2, 3, 0, 0, 0]]
    assert found.places[0].tolist() == [0, 1, 2, 3, 4, 12]
    assert found.mask.tolist() == [[0, 1, 1, 0, 1, 0], [0, 0, 1, 1, 0, 0]]


@pytest.mark.parametrize("starts", [(), (1,), (0, 2), (0, 0), (0, 1, 1), (0, 4)])
def test_segments_that_start_where_none_can_are_refused(starts):
    with pytest.raises(RunStopped, match="trajectory 3-1-0 has segments that start at"):
        lay_out([trajectory(3, 1, segment_starts=starts)], [1.0], padded(2, 8))
