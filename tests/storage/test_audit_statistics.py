"""The tests of bias against an independent implementation and against numbers that anybody can check."""

import numpy as np
import pytest
from scipy import stats

from storage.statistics import categories, chi_square_tail, two_samples


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.3])
def test_two_samples_agree_with_scipy(shift):
    random = np.random.default_rng(3)
    a, b = random.normal(size=300), random.normal(shift, size=500)
    expected = stats.ks_2samp(a, b)
    distance, p = two_samples(a, b)
    assert distance == pytest.approx(expected.statistic)
    assert p == pytest.approx(expected.pvalue, abs=0.02, rel=0.2)


def test_equal_and_disjoint_samples():
    values = np.arange(50.0)
    assert two_samples(values, values) == (0.0, 1.0)
    distance, p = two_samples(values, values + 100)
    assert distance == 1.0 and p < 1e-9
    assert two_samples(values, values[:0]) == (0.0, 1.0)


@pytest.mark.parametrize("freedom", [1, 2, 3, 10, 101])
@pytest.mark.parametrize("x", [0.5, 5.0, 40.0, 200.0])
def test_the_tail_of_chi_square_is_scipy_s(x, freedom):
    assert chi_square_tail(x, freedom) == pytest.approx(stats.chi2.sf(x, freedom), rel=1e-9, abs=1e-300)


def test_categories_agree_with_scipy():
    a, b = {"x": 40, "y": 60, "z": 25}, {"x": 70, "y": 50, "z": 30}
    expected = stats.chi2_contingency([[40, 60, 25], [70, 50, 30]], correction=False)
    assert categories(a, b) == pytest.approx((expected.statistic, expected.pvalue))


def test_rare_categories_are_pooled():
    a = {f"rare-{i}": 1 for i in range(20)} | {"common": 80}
    assert categories(a, {"common": 100})[1] < 1e-4
    assert categories({"a": 3}, {"a": 2, "b": 1}) == (0.0, 1.0)
    assert categories({}, {"a": 2}) == (0.0, 1.0)
