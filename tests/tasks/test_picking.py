"""Which trajectories of a log are taken: rejection sampling and best against worst."""

import random

from schemas.warm_ups import RunPairs, RunSamples
from tasks.picking import Row, pairs, samples


def row(group, sample, reward, *, step=None, task="t", stream=None, prompt="p"):
    named = f"{group}-{sample}" if stream is None else stream
    return Row(group if step is None else step, group, sample, f"{task}{group}", reward, named, prompt)


def places(found):
    return [(r.group, r.sample) for r in found]


def test_the_best_of_each_group_above_the_threshold_are_taken_in_the_order_of_the_ledger():
    rows = [row(1, 0, 0.5), row(1, 1, 0.9), row(1, 2, 0.8), row(0, 0, 0.7), row(0, 1, 0.2), row(2, 0, 0.1)]
    found, left_out = samples(rows, RunSamples(run="a", min_reward=0.5, per_group=2))
    assert places(found) == [(0, 0), (1, 1), (1, 2)]
    assert left_out["reward below min_reward"] == 2 and left_out["more than per_group"] == 1


def test_a_stream_is_taken_once_and_a_task_no_more_often_than_allowed():
    rows = [Row(g, g, 0, "same", 1.0, "s" if g < 2 else str(g), "p") for g in range(5)]
    found, left_out = samples(rows, RunSamples(run="a", per_task=2))
    assert places(found) == [(3, 0), (4, 0)]  # of equals the newest
    assert left_out["repeated"] == 1 and left_out["more than per_task"] == 2


def test_the_best_is_set_against_the_worst_and_groups_without_a_difference_are_left_out():
    rows = [row(0, s, r) for s, r in enumerate((0.5, 1.0, 0.0, 1.0))] + [row(1, s, 1.0) for s in range(3)]
    rows += [row(2, 0, 0.4), row(2, 1, 0.0)]
    found, left_out = pairs(rows, RunPairs(run="a"))
    assert [(places(p)) for p in found] == [[(0, 1), (0, 2)]]
    assert left_out["equal rewards"] == 1 and left_out["best reward below min_reward"] == 1


def test_pairs_that_differ_in_nothing_or_in_their_prompt_are_left_out():
    rows = [row(0, 0, 1.0, stream="x"), row(0, 1, 0.0, stream="x"), row(1, 0, 1.0), row(1, 1, 0.0, prompt="other")]
    found, left_out = pairs(rows, RunPairs(run="a"))
    assert not found and left_out["equal sides"] == left_out["different prompts"] == 1


def test_of_a_task_the_pair_with_the_largest_difference_is_kept():
    rows = [
        Row(g, g, s, "same", r, f"{g}-{s}", "p") for g, low in ((0, 0.0), (1, 0.5)) for s, r in ((0, 1.0), (1, low))
    ]
    found, _ = pairs(rows, RunPairs(run="a", per_task=1))
    assert places(found[0]) == [(0, 0), (0, 1)] and len(found) == 1


def test_the_order_in_which_rows_are_read_changes_nothing():
    draw = random.Random(1)
    rows = [row(g, s, draw.choice((0.0, 0.5, 1.0)), stream=str(draw.randrange(20))) for g in range(8) for s in range(4)]
    shuffled = draw.sample(rows, len(rows))
    settings = RunSamples(run="a", min_reward=0.5, per_group=2, per_task=2)
    assert samples(rows, settings) == samples(shuffled, settings)
    assert pairs(rows, settings) == pairs(shuffled, settings)
