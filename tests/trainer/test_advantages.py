"""Advantages of a group, each against its definition in plain Python."""

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.algorithms import ADVANTAGES as NAMES
from schemas.errors import RequestError
from trainer.advantages import ADVANTAGES, dr_grpo, find_advantage, grpo, rloo

REWARDS = st.lists(st.floats(0, 1, width=16), min_size=2, max_size=16)


@given(REWARDS)
def test_grpo_is_the_standard_score_of_its_group(rewards):
    mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards)
    expected = [(r - mean) / (deviation + 1e-6) for r in rewards]
    np.testing.assert_allclose(grpo(np.array(rewards)), expected, rtol=1e-9, atol=1e-9)


@given(REWARDS, st.randoms())
def test_grpo_does_not_depend_on_the_order(rewards, random):
    order = random.sample(range(len(rewards)), len(rewards))
    shuffled = grpo(np.array([rewards[i] for i in order]))
    np.testing.assert_allclose(shuffled, grpo(np.array(rewards))[order], atol=1e-9)


@pytest.mark.parametrize("reward", [0.0, 0.25, 1.0])
def test_equal_rewards_teach_nothing(reward):
    assert grpo(np.full(5, reward)).tolist() == [0.0] * 5


@given(REWARDS)
def test_dr_grpo_only_centres(rewards):
    mean = statistics.fmean(rewards)
    np.testing.assert_allclose(dr_grpo(np.array(rewards)), [r - mean for r in rewards], atol=1e-12)


@given(REWARDS)
def test_rloo_compares_with_the_others(rewards):
    wanted = [r - statistics.fmean([*rewards[:i], *rewards[i + 1 :]]) for i, r in enumerate(rewards)]
    np.testing.assert_allclose(rloo(np.array(rewards)), wanted, atol=1e-12)


def test_advantages_go_by_the_names_of_the_configuration():
    assert tuple(ADVANTAGES) == NAMES


def test_an_advantage_of_the_users_own_is_found(tmp_path):
    (tmp_path / "scores.py").write_text("def above(rewards):\n    return rewards - rewards.min()\n")
    own = find_advantage("scores:above", str(tmp_path))
    assert own(np.array([1.0, 3.0, 2.0])).tolist() == [0.0, 2.0, 1.0]
    with pytest.raises(RequestError, match=r"`scores:below`: .* defines no `below`"):
        find_advantage("scores:below", str(tmp_path))
