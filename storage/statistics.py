"""Two tests of whether a part differs from the rest, as pure functions of numbers.

Kolmogorov and Smirnov's for quantities (asymptotic p-value, Stephens 1970, "Use of the Kolmogorov-Smirnov ... without
extensive tables"), Pearson's chi-square for categories.
"""

import math
from collections.abc import Mapping

import numpy as np

_FEW = 5.0
"""Categories that are expected less often than this in either sample are pooled, as the chi-square test needs."""


def two_samples(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """(largest distance of the distribution functions, p-value) of samples [n] and [m]; (0, 1) where one is empty."""
    n, m = len(a), len(b)
    if not n or not m:
        return 0.0, 1.0
    a, b = np.sort(a), np.sort(b)
    points = np.concatenate([a, b])
    gaps = np.searchsorted(a, points, side="right") / n - np.searchsorted(b, points, side="right") / m
    distance = float(np.abs(gaps).max())
    root = math.sqrt(n * m / (n + m))
    return distance, _kolmogorov((root + 0.12 + 0.11 / root) * distance)


def _kolmogorov(x: float) -> float:
    """The chance that the limit distribution exceeds x."""
    if x < 0.2:  # the series below converges slowly there, and the chance is 1 to twelve digits
        return 1.0
    terms = (2.0 * (-1.0) ** (k - 1) * math.exp(-2.0 * (k * x) ** 2) for k in range(1, 101))
    return min(1.0, max(0.0, sum(terms)))


def categories(a: Mapping[str, int], b: Mapping[str, int]) -> tuple[float, float]:
    """(chi-square, p-value) of the counts of two samples by category; (0, 1) where there is nothing to compare."""
    names = sorted({*a, *b})
    table = np.array([[a.get(n, 0) for n in names], [b.get(n, 0) for n in names]], dtype=float).reshape(2, -1)
    total = table.sum()
    if not table.sum(axis=1).all():
        return 0.0, 1.0
    table = _pooled(table, _expected(table, total).min(axis=0) < _FEW)
    if table.shape[1] < 2:
        return 0.0, 1.0
    expected = _expected(table, total)
    chi2 = float(((table - expected) ** 2 / expected).sum())
    return chi2, chi_square_tail(chi2, table.shape[1] - 1)


def _expected(table: np.ndarray, total: float) -> np.ndarray:
    return table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / total


def _pooled(table: np.ndarray, rare: np.ndarray) -> np.ndarray:
    if not rare.any():
        return table
    return np.concatenate([table[:, ~rare], table[:, rare].sum(axis=1, keepdims=True)], axis=1)


def chi_square_tail(x: float, freedom: int) -> float:
    """The chance of a chi-square above x with so many degrees of freedom.

    From Q(1/2, y) = erfc(√y) or Q(1, y) = e^-y upwards by Q(a + 1, y) = Q(a, y) + y^a e^-y / Γ(a + 1)
    (Abramowitz and Stegun, 6.5.21).
    """
    if x <= 0:
        return 1.0
    y = x / 2
    at, tail = (0.5, math.erfc(math.sqrt(y))) if freedom % 2 else (1.0, math.exp(-y))
    while at < freedom / 2:
        tail += math.exp(at * math.log(y) - y - math.lgamma(at + 1))
        at += 1
    return min(1.0, tail)
