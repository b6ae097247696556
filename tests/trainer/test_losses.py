"""Policy losses against an independent float64 reading of the papers, token by token in plain loops."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.losses import clipped_surrogate, means, merged, metric_sums, sequence_mean, token_mean

B, T = 6, 7
CASES = [(0.2, 0.2, 3.0), (0.1, 0.3, None), (0.2, 0.28, 1.5)]


@pytest.fixture
def arrays():
    draw = np.random.default_rng(3)
    now = draw.normal(-1.5, 0.8, (B, T))
    then = now + draw.normal(0, 0.6, (B, T))
    mask = draw.random((B, T)) < 0.6
    mask[:, 2] = True
    return now, then, draw.normal(0, 1, B), mask.astype(np.float64), draw.random((B, T))


def expected(now, then, advantage, low, high, dual):
    """Loss of one token and whether the clip decided it."""
    ratio = math.exp(now - then)
    plain, held = ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage
    gain = min(plain, held)
    if dual is not None and advantage < 0 and gain < dual * advantage:
        return -dual * advantage, True
    return -gain, held < plain


@pytest.mark.parametrize(("low", "high", "dual"), CASES)
def test_the_clipped_surrogate_is_the_papers(arrays, low, high, dual):
    now, then, advantages, _, _ = arrays
    found = clipped_surrogate(*map(jnp.asarray, (now, then, advantages)), clip_low=low, clip_high=high, dual_clip=dual)
    for row in range(B):
        for t in range(T):
            loss, clipped = expected(now[row, t], then[row, t], advantages[row], low, high, dual)
            assert found.loss[row, t] == pytest.approx(loss, rel=1e-5, abs=1e-6)
            assert bool(found.clipped[row, t]) == clipped


@pytest.mark.parametrize(("low", "high", "dual"), CASES)
def test_its_gradient_is_that_of_finite_differences(arrays, low, high, dual):
    now, then, advantages, _, _ = arrays

    def total(logprobs):
        part = clipped_surrogate(
            logprobs, jnp.asarray(then), jnp.asarray(advantages), clip_low=low, clip_high=high, dual_clip=dual
        )
        return part.loss.sum()

    found = jax.grad(total)(jnp.asarray(now))
    for row in range(B):
        for t in range(T):
            up, down = (
                expected(now[row, t] + d, then[row, t], advantages[row], low, high, dual)[0] for d in (1e-6, -1e-6)
            )
            assert found[row, t] == pytest.approx((up - down) / 2e-6, rel=1e-3, abs=1e-4)


def test_a_token_of_the_policy_that_sampled_has_the_plain_policy_gradient(arrays):
    now, _, advantages, _, _ = arrays

    def total(logprobs):
        part = clipped_surrogate(
            logprobs, jnp.asarray(now), jnp.asarray(advantages), clip_low=0.2, clip_high=0.2, dual_clip=3.0
        )
        return part.loss.sum()

    wanted = np.repeat(-advantages[:, None], T, axis=1)
    np.testing.assert_allclose(jax.grad(total)(jnp.asarray(now)), wanted, rtol=1e-5)


def test_ratios_beyond_all_bounds_stay_finite():
    now, then = jnp.asarray([[0.0, -500.0]]), jnp.asarray([[-500.0, 0.0]])
    for advantage in (1.0, -1.0):
        found = clipped_surrogate(now, then, jnp.asarray([advantage]), clip_low=0.2, clip_high=0.2, dual_clip=None)
        assert np.isfinite(found.loss).all()


def test_token_mean_weighs_every_sampled_token_alike(arrays):
    *_, mask, values = arrays
    weights = np.array([1, 1, 0, 1, 1, 0])
    total, count = token_mean(*map(jnp.asarray, (values, mask, weights)))
    chosen = [values[i, t] for i in range(B) for t in range(T) if mask[i, t] and weights[i]]
    assert float(total / count) == pytest.approx(sum(chosen) / len(chosen), rel=1e-6)


def test_sequence_mean_weighs_every_row_alike(arrays):
    *_, mask, values = arrays
    weights = np.array([1, 1, 0, 1, 1, 0])
    total, count = sequence_mean(*map(jnp.asarray, (values, mask, weights)))
    rows = [np.mean(values[i][mask[i] > 0]) for i in range(B) if weights[i]]
    assert float(total / count) == pytest.approx(np.mean(rows), rel=1e-6)


def test_metrics_are_means_over_sampled_tokens(arrays):
    now, then, advantages, mask, entropy = arrays
    found = means(sums(now, then, advantages, mask, entropy))
    chosen = [(i, t) for i in range(B) for t in range(T) if mask[i, t]]
    ratios = [math.exp(now[p] - then[p]) for p in chosen]
    clips = [expected(now[i, t], then[i, t], advantages[i], 0.2, 0.2, 3.0)[1] for i, t in chosen]
    wanted = {
        "ratio": np.mean(ratios),
        "ratio_max": max(ratios),
        "clip_fraction": np.mean(clips),
        "entropy": np.mean([entropy[p] for p in chosen]),
        "mismatch_kl": np.mean([r - 1 - math.log(r) for r in ratios]),
        "effective_sample_size": sum(ratios) ** 2 / sum(r * r for r in ratios) / len(ratios),
    }
    assert {k: float(v) for k, v in found.items()} == pytest.approx(wanted, rel=1e-4)


def test_metrics_of_parts_are_those_of_the_whole(arrays):
    whole = sums(*arrays)
    parts = merged(sums(*(a[:2] for a in arrays)), sums(*(a[2:] for a in arrays)))
    for name, value in whole.items():
        assert float(parts[name]) == pytest.approx(float(value), rel=1e-5)


def sums(now, then, advantages, mask, entropy):
    now, then, advantages, mask, entropy = map(jnp.asarray, (now, then, advantages, mask, entropy))
    policy = clipped_surrogate(now, then, advantages, clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    return metric_sums(policy, now, then, entropy, mask)
