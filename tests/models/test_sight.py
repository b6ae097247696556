"""Attention in blocks: what a row's tokens see does not depend on how their row is cut, nor on who shares it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.tiny import TINY, lively

from models.logprobs import token_logprobs
from models.pure import init_params
from models.sight import over_row

WINDOWED = dataclasses.replace(TINY, windows=(3, None))
LENGTHS = (5, 7, 4)
PARAMS = lively(init_params(TINY, 0))
TOKENS = np.random.default_rng(0).integers(0, TINY.vocab_size, sum(LENGTHS))[None]
SEGMENTS = np.repeat(np.arange(1, 4), LENGTHS)[None]
PLACES = np.concatenate([np.arange(n) for n in LENGTHS])[None]


def logprobs(config, tokens, places, segments):
    return np.asarray(jax.jit(token_logprobs, static_argnums=0)(config, PARAMS, tokens, places, segments)[0])[0]


@pytest.mark.parametrize("config", [TINY, WINDOWED], ids=["all", "windows"])
def test_streams_that_share_a_row_are_scored_as_if_alone(config, monkeypatch):
    whole = logprobs(config, TOKENS, PLACES, SEGMENTS)
    monkeypatch.setattr("models.sight.SHORTEST", 2)
    cut = logprobs(config, TOKENS, PLACES, SEGMENTS)
    np.testing.assert_allclose(cut, whole, atol=1e-5)
    start = 0
    for size in LENGTHS:
        span = np.s_[:, start : start + size]
        alone = logprobs(config, TOKENS[span], PLACES[span], np.ones((1, size), bool))
        np.testing.assert_allclose(whole[start + 1 : start + size], alone[1:], atol=1e-5)
        start += size


def test_blocks_leave_out_keys_that_none_of_them_sees():
    segments = jnp.ones((1, 384), jnp.int32)
    whole = over_row(segments, None)
    assert [(s.queries.start, s.keys.stop) for s in whole] == [(i, i + 64) for i in range(0, 384, 64)]
    assert sum(s.mask.size for s in whole) < 0.6 * 384**2
    near = over_row(segments, 32)
    assert [s.keys.start for s in near] == [0, 33, 97, 161, 225, 289]
    assert int(sum(s.mask.sum() for s in near)) == sum(min(t + 1, 32) for t in range(384))
