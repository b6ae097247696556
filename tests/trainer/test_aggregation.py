"""Aggregations: what a token and a sequence weigh, against plain loops; and the metrics over a batch."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from schemas.algorithms import Loss
from trainer.aggregation import AGGREGATIONS
from trainer.loss_metrics import means, merged, metric_sums
from trainer.losses import Terms, ppo

B, T = 6, 7
WEIGHTS = np.array([1, 1, 0, 1, 1, 0])


@pytest.fixture
def arrays():
    draw = np.random.default_rng(5)
    now = draw.normal(-1.5, 0.8, (B, T))
    mask = (draw.random((B, T)) < 0.6).astype(np.float64)
    mask[:, 2] = 1
    weight = draw.random((B, T)) * (draw.random((B, T)) < 0.8)
    return now, now + draw.normal(0, 0.6, (B, T)), draw.normal(0, 1, B), mask, draw.random((B, T)), weight


def of_rows(values, mask):
    return [[values[i, t] for t in range(T) if mask[i, t]] for i in range(B) if WEIGHTS[i]]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("token_mean", lambda rows: np.mean([v for row in rows for v in row])),
        ("sequence_mean", lambda rows: np.mean([np.mean(row) for row in rows])),
        ("sequence_sum", lambda rows: np.mean([np.sum(row) / T for row in rows])),
    ],
)
def test_an_aggregation_is_the_papers(arrays, name, wanted):
    *_, mask, values, _ = arrays
    total, count = AGGREGATIONS[name](*map(jnp.asarray, (values, mask, WEIGHTS)))
    assert float(total / count) == pytest.approx(wanted(of_rows(values, mask)), rel=1e-6)


def test_metrics_are_means_over_sampled_tokens(arrays):
    now, then, advantages, mask, entropy, weight = arrays
    found = means(sums(*arrays))
    chosen = [(i, t) for i in range(B) for t in range(T) if mask[i, t]]
    ratios = [math.exp(now[p] - then[p]) for p in chosen]
    clips = [
        (r > 1.2 and advantages[i] > 0) or (r < 0.8 and advantages[i] < 0) or (r > 3 and advantages[i] < 0)
        for r, (i, _) in zip(ratios, chosen, strict=True)
    ]
    wanted = {
        "ratio": np.mean(ratios),
        "ratio_max": max(ratios),
        "clip_fraction": np.mean(clips),
        "masked_fraction": np.mean([weight[p] == 0 for p in chosen]),
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


def sums(now, then, advantages, mask, entropy, weight):
    now, then, advantages, mask, entropy, weight = map(jnp.asarray, (now, then, advantages, mask, entropy, weight))
    policy = ppo(Terms(now, then, jnp.repeat(advantages[:, None], T, 1), mask), Loss())
    return metric_sums(policy, now, then, entropy, weight, mask)
