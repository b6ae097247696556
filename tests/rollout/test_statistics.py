"""Intervals against independent computations."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.statistics import paired_bootstrap, pass_at, wilson


def test_wilson_against_published_figures() -> None:
    """Newcombe 1998, table I, method 3."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


@given(st.integers(0, 50), st.integers(1, 50), st.floats(0.5, 0.999))
def test_wilson_holds_the_rate(wins: int, n: int, confidence: float) -> None:
    low, high = wilson(min(wins, n), n, confidence)
    assert 0 <= low <= min(wins, n) / n + 1e-12
    assert min(wins, n) / n - 1e-12 <= high <= 1


def test_wilson_ends_where_nothing_or_all_was_won() -> None:
    assert (wilson(0, 20)[0], wilson(20, 20)[1]) == (0.0, 1.0)


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_success(n: int, data: st.DataObject) -> None:
    wins, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    outcomes = [True] * wins + [False] * (n - wins)
    subsets = list(itertools.combinations(outcomes, k))
    assert pass_at(n, wins, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets))


def test_pass_at_more_than_was_played_is_refused() -> None:
    with pytest.raises(ValueError, match="pass@3 can't be told from 2 samples"):
        pass_at(2, 1, 3)


def test_nothing_is_known_of_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


def test_bootstrap_keeps_pairs_and_its_seed() -> None:
    rng = np.random.default_rng(0)
    hard = rng.random(200)
    b = list((rng.random(200) < hard).astype(float))
    a = [min(1.0, x + (i % 10 == 0)) for i, x in enumerate(b)]
    mean, low, high = paired_bootstrap(a, b, resamples=2000, confidence=0.95, seed=3)
    assert (mean, low, high) == paired_bootstrap(a, b, resamples=2000, confidence=0.95, seed=3)
    difference = np.array(a) - np.array(b)
    assert mean == pytest.approx(difference.mean())
    half = 1.96 * difference.std() / np.sqrt(200)
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=0.01)


def test_equal_scores_have_no_interval_and_unpaired_ones_are_refused() -> None:
    assert paired_bootstrap([1, 0], [1, 0], resamples=10, confidence=0.9, seed=0) == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="not 1 and 2"):
        paired_bootstrap([1], [1, 0], resamples=10, confidence=0.9, seed=0)
