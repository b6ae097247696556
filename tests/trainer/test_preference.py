"""Preference losses: against an independent float64 reading of the papers, against TRL, and by their gradients."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trainer.preference import Sides, dpo, orpo

TRL = json.loads((Path(__file__).parent / "references/trl_preference.json").read_text())
PAIRS = 9


def sides(chosen, rejected):
    return Sides(jnp.asarray(chosen, jnp.float32), jnp.asarray(rejected, jnp.float32))


@pytest.fixture
def summed():
    draw = np.random.default_rng(5)
    return [draw.uniform(-30, -1, PAIRS) for _ in range(4)]


@pytest.fixture
def averaged():
    draw = np.random.default_rng(6)
    return [-np.exp(draw.uniform(-6, 1, PAIRS)) for _ in range(2)]


def log_sigmoid(x):
    return -math.log1p(math.exp(-x)) if x > -30 else x


def dpo_by_the_paper(chosen, rejected, then_chosen, then_rejected, beta, smoothing):
    """Equation 7, with a share of the pairs turned round."""
    u = beta * ((chosen - then_chosen) - (rejected - then_rejected))
    return -(1 - smoothing) * log_sigmoid(u) - smoothing * log_sigmoid(-u)


def orpo_by_the_paper(chosen, rejected, weight):
    """Equations 4, 6 and 7: odds are P / (1 - P) of the geometric mean probability."""
    odds = [math.exp(v) / -math.expm1(v) for v in (chosen, rejected)]
    return -chosen - weight * log_sigmoid(math.log(odds[0] / odds[1]))


@pytest.mark.parametrize(("beta", "smoothing"), [(0.1, 0.0), (1.0, 0.0), (0.3, 0.25)])
def test_dpo_is_the_papers(summed, beta, smoothing):
    found = dpo(sides(*summed[:2]), sides(*summed[2:]), beta, smoothing)
    expected = [dpo_by_the_paper(*pair, beta, smoothing) for pair in zip(*summed, strict=True)]
    np.testing.assert_allclose(found.loss, expected, rtol=2e-5)
    np.testing.assert_allclose(found.rewards.chosen, beta * (summed[0] - summed[2]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weight", [0.1, 1.0])
def test_orpo_is_the_papers(averaged, weight):
    found = orpo(sides(*averaged), weight)
    expected = [orpo_by_the_paper(*pair, weight) for pair in zip(*averaged, strict=True)]
    np.testing.assert_allclose(found.loss, expected, rtol=2e-5)


@pytest.mark.parametrize("case", TRL["dpo"], ids=lambda c: f"beta{c['beta']}-smoothing{c['label_smoothing']}")
def test_dpo_is_trls(case):
    reference = sides(case["reference_chosen"], case["reference_rejected"])
    found = dpo(sides(case["chosen"], case["rejected"]), reference, case["beta"], case["label_smoothing"])
    np.testing.assert_allclose(found.loss, case["loss"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", TRL["orpo"], ids=lambda c: f"weight{c['odds_weight']}")
def test_the_odds_ratio_is_trls(case):
    """TRL's loss is the chosen side's negative log-likelihood less this."""
    found = orpo(sides(case["chosen"], case["rejected"]), case["odds_weight"])
    imitation = -jnp.asarray(case["chosen"])
    np.testing.assert_allclose(imitation - found.loss, case["weighted_ratio"], rtol=1e-4, atol=2e-6)
    np.testing.assert_allclose(found.rewards.chosen, case["chosen_reward"], rtol=1e-6)
    np.testing.assert_allclose(found.rewards.rejected, case["rejected_reward"], rtol=1e-6)


def difference(function, values, place, step=1e-5):
    """The slope of a float64 function in one of its numbers."""
    high, low = list(values), list(values)
    high[place], low[place] = high[place] + step, low[place] - step
    return (function(*high) - function(*low)) / (2 * step)


def test_the_gradient_of_dpo_is_the_papers_slope(summed):
    reference = sides(*summed[2:])
    found = jax.grad(lambda p: dpo(p, reference, 0.2, 0.1).loss.sum())(sides(*summed[:2]))
    for i, pair in enumerate(zip(*summed, strict=True)):
        for place, side in enumerate(found):
            assert float(side[i]) == pytest.approx(
                difference(lambda *v: dpo_by_the_paper(*v, 0.2, 0.1), pair, place), rel=1e-3, abs=1e-6
            )


def test_the_gradient_of_orpo_is_the_papers_slope(averaged):
    found = jax.grad(lambda p: orpo(p, 0.5).loss.sum())(sides(*averaged))
    for i, pair in enumerate(zip(*averaged, strict=True)):
        for place, side in enumerate(found):
            expected = difference(lambda *v: orpo_by_the_paper(*v, 0.5), pair, place, step=1e-7)
            assert float(side[i]) == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_a_certain_answer_has_a_finite_loss_and_gradient():
    certain = sides([0.0, -200.0, -1e-9], [-200.0, 0.0, 0.0])
    loss, gradient = jax.value_and_grad(lambda p: orpo(p, 0.1).loss.sum())(certain)
    assert jnp.isfinite(loss) and all(jnp.isfinite(g).all() for g in gradient)
