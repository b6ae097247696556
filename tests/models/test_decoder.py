"""The decoder computes what the architecture says, whichever way its tokens come in."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.numpy_llama import logits as reference
from support.tiny import TINY, lively

from models.cache import KVCache, copy_rows, empty_cache, head, put_tokens, take_rows
from models.decoder import Decoder
from models.logprobs import of_tokens, token_logprobs
from models.pure import Params, apply, extend, flatten, init_params, module, nest, shapes

run = jax.jit(apply, static_argnums=0)
grow = jax.jit(extend, static_argnums=0)
score = jax.jit(token_logprobs, static_argnums=0)
PARAMS = lively(init_params(TINY, seed=0))


def batch(rows: int, length: int, seed: int = 0) -> tuple[jax.Array, jax.Array, jax.Array]:
    tokens = np.random.default_rng(seed).integers(0, TINY.vocab_size, (rows, length))
    return jnp.asarray(tokens, jnp.int32), jnp.tile(jnp.arange(length), (rows, 1)), jnp.ones((rows, length), bool)


def test_logits_equal_an_independent_forward_pass(config, params):
    tokens, positions, valid = batch(2, 20)
    ours = run(config, params, tokens, positions, valid)
    for row in range(2):
        theirs = reference(config.to_hf(), flatten(params), tokens[row].tolist())
        np.testing.assert_allclose(ours[row], theirs, atol=2e-5, rtol=1e-5)


def test_padding_changes_nothing():
    tokens, positions, valid = batch(2, 9)
    short = run(TINY, PARAMS, tokens[:, :5], positions[:, :5], valid[:, :5])
    other = tokens.at[:, 5:].set(3)
    long = run(TINY, PARAMS, other, positions, valid.at[:, 5:].set(False))
    np.testing.assert_allclose(long[:, :5], short, atol=1e-5)
    assert np.isfinite(long).all()


def test_a_row_without_tokens_is_finite_and_harmless():
    tokens, positions, valid = batch(2, 6)
    both = run(TINY, PARAMS, tokens, positions, valid.at[1].set(False))
    np.testing.assert_allclose(both[0], run(TINY, PARAMS, tokens, positions, valid)[0], atol=1e-6)
    assert np.isfinite(both).all()


@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_extending_in_chunks_equals_the_whole(config, params, chunk):
    tokens, positions, valid = batch(3, 12)
    whole = run(config, params, tokens, positions, valid)
    cache, parts = empty_cache(config, rows=3, length=14), []
    for start in range(0, 12, chunk):
        lengths, counts = jnp.full(3, start), jnp.full(3, chunk)
        part, cache = grow(config, params, tokens[:, start : start + chunk], cache, lengths, counts)
        parts.append(part)
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), whole, atol=1e-5)


def test_rows_advance_independently(config, params):
    """Ragged counts, zero among them, random in order: every real token's logits equal those of the whole row."""
    tokens, positions, valid = batch(4, 12)
    whole, draw = run(config, params, tokens, positions, valid), np.random.default_rng(5)
    cache, lengths = empty_cache(config, rows=4, length=12), np.zeros(4, int)
    while lengths.min() < 12:
        counts = np.minimum(draw.integers(0, 4, 4), 12 - lengths)
        chunk = draw.integers(0, config.vocab_size, (4, 3))
        for row in range(4):
            chunk[row, : counts[row]] = tokens[row, lengths[row] : lengths[row] + counts[row]]
        out, cache = grow(config, params, jnp.asarray(chunk), cache, jnp.asarray(lengths), jnp.asarray(counts))
        for row in range(4):
            expected = whole[row, lengths[row] : lengths[row] + counts[row]]
            np.testing.assert_allclose(out[row, : counts[row]], expected, atol=1e-5)
        lengths += counts


def test_unreal_tokens_leave_no_trace_in_the_cache():
    tokens, _, _ = batch(2, 4)
    empty = empty_cache(TINY, rows=2, length=8)
    _, some = grow(TINY, PARAMS, tokens, empty, jnp.array([0, 5]), jnp.array([2, 0]))
    for keys, values in zip(some.keys, some.values, strict=True):
        assert not keys[0, :, :, 2:].any() and not values[0, :, 2:].any()
        assert not keys[1].any() and not values[1].any()


def test_a_full_row_is_not_written_beyond_its_end():
    tokens, _, _ = batch(1, 4)
    _, full = grow(TINY, PARAMS, tokens, empty_cache(TINY, 1, 4), jnp.array([0]), jnp.array([4]))
    _, after = grow(TINY, PARAMS, tokens[:, :1], full, jnp.array([4]), jnp.array([1]))
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), full, after)))


def test_steps_read_a_cache_and_write_beside_it(config, params):
    """Rows of different lengths advance together; what they add can be put into the cache afterwards."""
    tokens, positions, valid = batch(3, 12)
    whole, lengths = run(config, params, tokens, positions, valid), jnp.array([2, 0, 7])
    _, past = grow(config, params, tokens, empty_cache(config, 3, 12), jnp.zeros(3, int), lengths)
    step = jax.jit(lambda *inputs: module(config, params).step(*inputs))
    recent = empty_cache(config, 3, 5)
    for number in range(5):
        at = lengths + number
        logits, recent = step(tokens[jnp.arange(3), at], past, lengths, recent, jnp.int32(number))
        np.testing.assert_allclose(logits, whole[jnp.arange(3), at], atol=1e-5)
    order = jnp.array([0, 2, 1])
    rows, counts = jnp.array([0, 2, 9]), jnp.array([5, 4, 0])
    longer = put_tokens(past, rows, lengths[order], counts, take_rows(recent, order))
    _, expected = grow(config, params, tokens, empty_cache(config, 3, 12), jnp.zeros(3, int), jnp.array([7, 0, 11]))
    for ours, theirs in zip(jax.tree.leaves(longer), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_rows_and_heads_of_a_cache_are_cut_and_copied():
    tokens, _, _ = batch(3, 4)
    _, cache = grow(TINY, PARAMS, tokens, empty_cache(TINY, 3, 8), jnp.zeros(3, int), jnp.full(3, 4))
    one, short = take_rows(cache, jnp.array([2, 0])), head(cache, 5)
    assert (one.rows, one.length, short.length) == (2, 8, 5)
    assert bool((one.keys[1][0] == cache.keys[1][2]).all())
    copied = copy_rows(cache, jnp.array([[2, 0], [1, 2], [0, 1]]), jnp.int32(2))
    for before, after in zip(jax.tree.leaves(cache), jax.tree.leaves(copied), strict=True):
        assert bool((after == before[jnp.array([2, 1, 1])]).all())


def test_engine_and_learner_log_probs_agree(config, params):
    tokens, positions, valid = batch(2, 12)
    learner, entropy = score(config, params, tokens, positions, valid)
    cache, engine = empty_cache(config, 2, 16), []
    for t in range(11):
        logits, cache = grow(config, params, tokens[:, t : t + 1], cache, jnp.full(2, t), jnp.ones(2, int))
        engine.append(of_tokens(logits[:, 0], tokens[:, t + 1]))
    np.testing.assert_allclose(learner[:, 1:], jnp.stack(engine, axis=1), atol=2e-6)
    assert not learner[:, 0].any() and not entropy[:, 0].any()


def test_log_probs_and_entropy_equal_numpy(config, params):
    tokens, positions, valid = batch(2, 7)
    logs, entropy = score(config, params, tokens, positions, valid)
    raw = np.asarray(run(config, params, tokens, positions, valid), np.float64)[:, :-1]
    all_logs = raw - np.log(np.exp(raw).sum(-1, keepdims=True))
    chosen = np.take_along_axis(all_logs, np.asarray(tokens)[:, 1:, None], -1)[..., 0]
    np.testing.assert_allclose(logs[:, 1:], chosen, atol=1e-5)
    np.testing.assert_allclose(entropy[:, 1:], -(np.exp(all_logs) * all_logs).sum(-1), atol=1e-5)


def test_logits_made_in_parts_give_the_same_values_and_gradients(monkeypatch: pytest.MonkeyPatch):
    tokens, positions, valid = batch(3, 8)

    small = dataclasses.replace(TINY, num_hidden_layers=1)

    def both(params: Params) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        logs, entropies = token_logprobs(small, params, tokens, positions, valid)
        return (logs * jnp.cos(entropies)).sum(), (logs, entropies)

    params = lively(init_params(small, 0))
    whole = jax.jit(jax.grad(lambda p: both(p), has_aux=True))(params)
    monkeypatch.setattr("models.logprobs.LOGITS_AT_ONCE", 5 * TINY.vocab_size)
    parts = jax.jit(jax.grad(lambda p: both(p), has_aux=True))(params)
    jax.tree.map(partial(np.testing.assert_allclose, atol=2e-5), parts, whole)


def test_the_module_and_the_pure_functions_are_one_model(config, params):
    tokens, positions, valid = batch(2, 6)
    decoder = module(config, params)
    assert isinstance(decoder, nnx.Module) and isinstance(decoder.model.layers, nnx.List)
    called = nnx.jit(lambda model, *inputs: model(*inputs))(decoder, tokens, positions, valid)
    np.testing.assert_allclose(called, run(config, params, tokens, positions, valid), atol=1e-5)
    fresh = Decoder(config, rngs=nnx.Rngs(params=0))
    assert bool((fresh.model.norm.weight[...] == 1).all())


def test_names_and_shapes_are_those_of_the_parameters(config):
    flat = flatten(init_params(config, seed=3))
    assert {name: value.shape for name, value in flat.items()} == shapes(config)
    assert ("lm_head.weight" in flat) != config.tie_word_embeddings
    assert flatten(nest(flat)).keys() == flat.keys()


def test_the_seed_decides_the_parameters(config):
    one, same, other = (flatten(init_params(config, seed)) for seed in (1, 1, 2))
    assert all((one[name] == same[name]).all() for name in one)
    assert any((one[name] != other[name]).any() for name in one)


def test_gradients_reach_every_parameter(config, params):
    tokens, positions, valid = batch(2, 8)
    gradients = jax.jit(jax.grad(lambda p: token_logprobs(config, p, tokens, positions, valid)[0].sum()))(params)
    assert jax.tree.structure(gradients) == jax.tree.structure(params)
    assert all(float(jnp.abs(g).max()) > 0 for g in jax.tree.leaves(gradients))


def test_decoding_compiles_once_however_lengths_vary():
    params, traces = lively(init_params(TINY, 0)), []

    @partial(jax.jit, donate_argnums=1)
    def step(params, cache: KVCache, tokens, lengths, counts):
        traces.append(1)
        return extend(TINY, params, tokens, cache, lengths, counts)

    cache = empty_cache(TINY, 2, 16)
    for t in range(5):
        counts = jnp.array([1, t % 2], jnp.int32)
        _, cache = step(params, cache, jnp.ones((2, 1), jnp.int32), jnp.array([t, 0], jnp.int32), counts)
    assert len(traces) == 1


def test_bfloat16_parameters_compute_in_bfloat16_and_give_float32_logits():
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), lively(init_params(TINY, 0)))
    tokens, positions, valid = batch(1, 6)
    low = run(TINY, params, tokens, positions, valid)
    cache = empty_cache(TINY, 1, 8, jnp.bfloat16)
    out, cache = grow(TINY, params, tokens, cache, jnp.array([0]), jnp.array([6]))
    assert cache.keys[0].dtype == jnp.bfloat16
    assert low.dtype == out.dtype == jnp.float32
    np.testing.assert_allclose(out, low, atol=0.25)
