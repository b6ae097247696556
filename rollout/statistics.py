"""Intervals around success rates, as pure functions."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np


def wilson(successes: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The score interval of a proportion (Wilson 1927), (0, 1) for n = 0.

    >>> tuple(round(x, 3) for x in wilson(9, 10))
    (0.596, 0.982)
    """
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p = successes / n
    middle = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = (middle - half) / scale if successes else 0.0
    high = (middle + half) / scale if successes < n else 1.0
    return max(0.0, low), min(1.0, high)


def pass_at(n: int, successes: int, k: int) -> float:
    """The chance that at least one of k samples succeeds, unbiased from `successes` of n (Chen et al. 2021, eq. 1).

    arXiv:2107.03374. ValueError for k above n.

    >>> pass_at(4, 2, 2).__round__(3)
    0.833
    """
    if k > n:
        raise ValueError(f"pass@{k} can't be told from {n} samples")
    return 1.0 - math.comb(n - successes, k) / math.comb(n, k)


def paired_bootstrap(
    a: Sequence[float], b: Sequence[float], *, resamples: int, confidence: float, seed: int
) -> tuple[float, float, float]:
    """How much better `a` is than `b`, task by task: mean difference and its percentile interval.

    `a` and `b` are [N] scores of the same tasks in the same order. Tasks are resampled with replacement, so that the
    pairing is kept (Efron & Tibshirani 1993, ch. 13). ValueError where the lengths differ or are 0.
    """
    if len(a) != len(b) or not a:
        raise ValueError(f"paired scores must be of one length above 0, not {len(a)} and {len(b)}")
    difference_N = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    rng = np.random.default_rng(seed)
    means = [float(rng.choice(difference_N, difference_N.size).mean()) for _ in range(resamples)]
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(difference_N.mean()), float(low), float(high)
