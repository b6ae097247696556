"""Truncation of the sampled distribution against a sort in NumPy."""

import jax
import numpy as np
import pytest
from support.engines import kept

from rollout.jax_sampling import sample, truncated

ROWS, SIZE = 6, 50


@pytest.mark.parametrize("top_p", [1.0, 0.99, 0.9, 0.5, 0.01])
@pytest.mark.parametrize("top_k", [0, 1, 7, 49, 50, 10**9])
def test_the_likeliest_stay_in(top_p, top_k):
    logits = np.random.default_rng(0).normal(0, 3, (ROWS, SIZE)).astype(np.float32)
    logits[1] -= 100
    logits[2] += 100
    logits[3, ::2] = -np.inf
    out = truncated(logits, np.full(ROWS, top_p, np.float32), np.full(ROWS, top_k, np.int32))
    for row, found in zip(logits, np.asarray(out), strict=True):
        stay = kept(row, top_p, top_k)
        assert np.array_equal(found[stay], row[stay])
        assert np.all(np.isneginf(found[~stay]))


def test_equals_of_the_last_token_kept_stay_in():
    logits = np.array([[2.0, 1.0, 1.0, 1.0, 0.0]], np.float32)
    by_count = truncated(logits, np.ones(1, np.float32), np.array([2], np.int32))
    assert np.isfinite(by_count).tolist() == [[True, True, True, True, False]]


def test_rows_ask_for_themselves():
    """Also with rows beside them that are cold, or that take all tokens."""
    logits = np.tile(np.linspace(3, 0, SIZE, dtype=np.float32), (4, 1))
    asked = np.array([1.0, 1.0, 0.0, 1.0], np.float32), np.array([1, 0.3, 0.3, 1], np.float32), np.array([0, 0, 0, 5])
    draw = jax.jit(lambda seed: sample(logits, *asked, np.full(4, 1, np.uint32) * seed, np.zeros(4, np.int32)))
    seen = np.array([draw(np.uint32(s)) for s in range(300)])
    allowed = kept(logits[1], 0.3, 0).sum()
    assert seen[:, 0].max() > allowed > seen[:, 1].max() > 4 >= seen[:, 3].max() > 1
    assert not seen[:, 2].any()
