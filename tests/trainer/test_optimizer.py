"""The optimizer: schedules by hand, AdamW against an independent NumPy version."""

import math

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from schemas.optimizer import Optimizer
from trainer.optimizer import make_optimizer, schedule


def rates(steps, **settings):
    made = schedule(Optimizer(learning_rate=1.0, **settings), steps)
    return [float(made(i)) for i in range(steps + 1)]


def test_a_constant_rate_stays():
    assert rates(3) == [1.0] * 4


def test_a_warm_up_rises_in_equal_parts_and_its_first_update_moves():
    assert rates(5, warmup_steps=3) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


def test_a_linear_rate_falls_to_its_share_at_the_last_step():
    assert rates(4, schedule="linear", final_ratio=0.2) == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])


def test_a_cosine_falls_after_the_warm_up():
    wanted = [1 / 3, 2 / 3, *(0.5 * (1 + math.cos(math.pi * i / 4)) for i in range(5))]
    assert rates(6, schedule="cosine", warmup_steps=2) == pytest.approx(wanted, abs=1e-6)


def test_the_fall_may_end_before_the_last_step():
    assert rates(4, schedule="linear", decay_steps=2) == pytest.approx([1, 0.5, 0, 0, 0])


@pytest.mark.parametrize("limit", [1.0, 100.0, None])
def test_updates_are_adamw_s(limit):
    settings = Optimizer(learning_rate=0.1, b2=0.9, weight_decay=0.3, max_grad_norm=limit)
    draw = np.random.default_rng(0)
    start = {"matrix": draw.normal(size=(3, 2)), "norm": draw.normal(size=2)}
    gradients = [{k: draw.normal(0, 2, v.shape) for k, v in start.items()} for _ in range(4)]
    made, params = make_optimizer(settings, 4), {k: jnp.asarray(v) for k, v in start.items()}
    state = made.init(params)
    for g in gradients:
        updates, state = made.update({k: jnp.asarray(v) for k, v in g.items()}, state, params)
        params = optax.apply_updates(params, updates)
    for name, wanted in adamw(start, gradients, settings).items():
        np.testing.assert_allclose(params[name], wanted, rtol=1e-4, atol=1e-5)


def adamw(params, gradients, c):
    """Loshchilov and Hutter's algorithm 2 in float64, decaying matrices only."""
    params = dict(params)
    first, second = ({k: np.zeros_like(v) for k, v in params.items()} for _ in range(2))
    for t, raw in enumerate(gradients, 1):
        norm = math.sqrt(sum((g**2).sum() for g in raw.values()))
        scale = 1.0 if c.max_grad_norm is None else min(1.0, c.max_grad_norm / norm)
        for k in params:
            g = raw[k] * scale
            first[k] = c.b1 * first[k] + (1 - c.b1) * g
            second[k] = c.b2 * second[k] + (1 - c.b2) * g**2
            step = first[k] / (1 - c.b1**t) / (np.sqrt(second[k] / (1 - c.b2**t)) + c.eps)
            decay = c.weight_decay * params[k] if params[k].ndim > 1 else 0.0
            params[k] = params[k] - c.learning_rate * (step + decay)
    return params
