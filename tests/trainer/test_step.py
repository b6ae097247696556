"""The jitted step: what must not change it (padding, micro-batches, process) and what it computes."""

import dataclasses
import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.protocol import trajectory
from support.tiny import TINY, lively

from models.logprobs import token_logprobs
from models.pure import apply, flatten, init_params, nest
from models.weights import params_digest
from schemas.algorithms import PRESETS, Loss
from schemas.optimizer import Optimizer
from trainer.batch import lay_out
from trainer.optimizer import make_optimizer
from trainer.packing import packed, padded
from trainer.step import Passes, init_state, line_logprobs, make_rl_step, make_sft_step

ROWS, LENGTH = 4, 12
SMALL = dataclasses.replace(TINY, num_hidden_layers=1)
OPTIMIZER = make_optimizer(Optimizer(learning_rate=0.01, max_grad_norm=None), 10)


SAMPLED = trajectory(0, 0)


def row(i):
    """Trajectory `i`, of 6 + i tokens, and its advantage."""
    draw, size = np.random.default_rng(i), 6 + i
    mask = np.arange(size) == 3
    mask[3:] |= draw.random(size - 3) < 0.7
    made = dataclasses.replace(
        SAMPLED,
        tokens=tuple(int(t) for t in draw.integers(0, SMALL.vocab_size, size)),
        mask=tuple(bool(m) for m in mask),
        logprobs=tuple(float(p) for p in np.where(mask, -draw.random(size) * 4, 0.0)),
    )
    return made, float(draw.normal())


def parts(layout, order=range(ROWS)):
    """These trajectories in micro-batches of this layout."""
    made = [row(i) for i in order]
    found = [part.batch for part in lay_out([t for t, _ in made], [a for _, a in made], layout)]
    for part in found:
        part.reference[:] = np.where(part.mask, part.behaviour * 0.5 - 1.0, 0.0)
    return found


def batch(rows=ROWS, used=ROWS):
    """The trajectories as one micro-batch, each in a row of its own; rows from `used` on are padding."""
    (found,) = parts(padded(rows, LENGTH), range(used))
    return found


def state():
    return init_state(start(), OPTIMIZER)


def start():
    return jax.tree.map(jnp.array, lively(init_params(SMALL, 0)))


def test_a_segment_is_scored_as_if_it_stood_alone():
    (one, _), (other, _) = row(0), row(1)
    size = len(one.tokens)
    names = ("tokens", "mask", "logprobs")
    joined = dataclasses.replace(one, **{name: getattr(one, name) + getattr(other, name) for name in names})
    joined = dataclasses.replace(joined, segment_starts=(0, size))
    (part,) = lay_out([joined], [1.0], padded(1, 16))
    (apart,) = lay_out([one, other], [1.0, 1.0], padded(2, 16))
    found, alone = (np.asarray(line_logprobs(SMALL, start(), p.batch)[0]) for p in (part, apart))
    mask = part.batch.mask[0] > 0
    expected = np.concatenate([alone[0, :size], alone[1, : len(other.tokens)]])
    np.testing.assert_allclose(found[0][mask], expected[mask[: len(expected)]], atol=1e-6)


@functools.cache
def rl(**settings):
    return make_rl_step(SMALL, Loss(**settings), OPTIMIZER)


LOSSES = [
    *({"algorithm": name} for name in PRESETS),
    {"aggregation": "sequence_mean"},
    {"kl": "k2", "kl_coefficient": 0.3},
    {"kl": "k3", "kl_coefficient": 0.3},
    *({"correction": name, "correction_low": 0.1} for name in ("decoupled", "truncated", "icepop", "sequence_mask")),
]


@functools.cache
def sft():
    return make_sft_step(SMALL, OPTIMIZER)


@jax.jit
def logits(params, tokens, segments):
    positions = jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)
    return apply(SMALL, params, tokens, positions, segments)


def close(one, other, atol=1e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=atol), one, other)


LAYOUTS = {
    "a row at a time": padded(1, LENGTH),
    "a row of padding": padded(3, LENGTH),
    "longer rows": padded(4, LENGTH + 5),
    "packed": packed(1, 18, LENGTH, ROWS),
    "packed, a row of padding": packed(4, 18, LENGTH, ROWS),
    "all in one row": packed(1, 40, LENGTH, ROWS),
}


@pytest.mark.parametrize("settings", LOSSES, ids=str)
def test_micro_batches_padding_and_packing_change_nothing(settings):
    """Adam's first update is the sign of the gradient: the moments are what shows a difference.

    Sums are taken in another order, so what is equal is equal but for float32's rounding: 1e-4 of a value, 1e-6 of 0.
    """
    step = rl(**settings)
    whole, figures = step(state(), [batch()])
    assert float(figures["grad_norm"]) > 0
    for name in ("a row at a time", "packed"):
        found, same = step(state(), parts(LAYOUTS[name]))
        close(found.optimizer, whole.optimizer)
        close(same, figures)


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_layout_changes_anything(name):
    """GSPO's ratio is a sequence's: one that mixed up who a token belongs to would show."""
    whole, figures = rl(algorithm="gspo")(state(), [batch()])
    for order in [(0, 1, 2, 3), (3, 1, 0, 2)]:
        found, same = rl(algorithm="gspo")(state(), parts(LAYOUTS[name], order))
        close(found.optimizer, whole.optimizer)
        close(same, figures)


def test_what_stands_in_padding_changes_nothing():
    step = rl()
    clean, filled = batch(used=3), batch(used=3)
    filled.tokens[filled.segments == 0] = 7
    filled.tokens[3] = 9
    filled.behaviour[filled.mask == 0] = -3.0
    filled.advantages[3] = 5.0
    one, other = step(state(), [clean])[0], step(state(), [filled])[0]
    assert params_digest(one.params) == params_digest(other.params)


def test_the_gradient_is_that_of_finite_differences():
    """Through the whole step."""
    after, _ = rl()(state(), [batch()])
    flat = flatten(gradient(after))
    for name, place in [("model.norm.weight", (3,)), ("model.embed_tokens.weight", (5, 2))]:
        up, down = (_loss(_moved(name, place, by), batch()) for by in (2e-3, -2e-3))
        assert float(flat[name][place]) == pytest.approx((up - down) / 4e-3, rel=2e-2, abs=1e-3)


def gradient(after):
    """The gradient of the only update so far: Adam's first moment, divided by 1 - b1."""
    (moments,) = (s for s in jax.tree.leaves(after.optimizer, is_leaf=_is_adam) if _is_adam(s))
    return jax.tree.map(lambda m: np.asarray(m) / 0.1, moments.mu)


def _is_adam(node):
    return hasattr(node, "mu")


def _moved(name, place, by):
    flat = {k: np.array(v) for k, v in flatten(start()).items()}
    flat[name][place] += by
    return nest(flat)


def _loss(params, b):
    """The step's loss in float64 and plain loops, from the decoder's logits."""
    scores = np.asarray(logits(params, b.tokens, b.segments), np.float64)
    gains = []
    for i, t in np.argwhere(b.mask):
        row = scores[i, t - 1] - scores[i, t - 1].max()
        ratio = np.exp(row[b.tokens[i, t]] - np.log(np.exp(row).sum()) - b.behaviour[i, t])
        gain = min(ratio * b.advantages[i], np.clip(ratio, 0.8, 1.2) * b.advantages[i])
        gains.append(max(gain, 3 * b.advantages[i]) if b.advantages[i] < 0 else gain)
    return -np.mean(gains)


def test_the_loss_is_the_papers():
    _, figures = rl()(state(), [batch()])
    assert float(figures["loss"]) == pytest.approx(_loss(start(), batch()), rel=1e-4)


def _gaps(b):
    """For each sampled token (log-prob now, row, place), in float64 and plain loops."""
    scores = np.asarray(logits(start(), b.tokens, b.segments), np.float64)
    for i, t in np.argwhere(b.mask):
        row = scores[i, t - 1] - scores[i, t - 1].max()
        yield row[b.tokens[i, t]] - np.log(np.exp(row).sum()), i, t


def test_a_corrected_loss_weighs_plain_gradients_by_truncated_importance():
    _, figures = rl(correction="truncated", correction_high=1.5)(state(), [batch()])
    b = batch()
    wanted = [-min(np.exp(now - b.behaviour[i, t]), 1.5) * b.advantages[i] for now, i, t in _gaps(b)]
    assert float(figures["loss"]) == pytest.approx(np.mean(wanted), rel=1e-4)


def test_divergence_from_the_reference_is_added_to_the_loss():
    b = batch()
    gaps = [now - b.reference[i, t] for now, i, t in _gaps(b)]
    wanted = np.mean([np.exp(-g) - 1 + g for g in gaps])
    _, figures = rl(kl="k3", kl_coefficient=0.3)(state(), [b])
    assert float(figures["reference_kl"]) == pytest.approx(wanted, rel=1e-4)
    assert float(figures["loss"]) == pytest.approx(_loss(start(), batch()) + 0.3 * wanted, rel=1e-4)


def test_layers_made_again_on_the_way_back_change_nothing():
    whole, figures = rl()(state(), [batch()])
    again = make_rl_step(SMALL, Loss(), OPTIMIZER, passes=Passes(remat=True))
    found, same = again(state(), [batch()])
    close(found.optimizer, whole.optimizer)
    close(same, figures)


def test_bfloat16_passes_move_float32_weights_nearly_the_same_way():
    """A rounding of 2^-9 in every product: the gradient keeps its length within 5 % and its direction within 0.1."""
    whole, figures = rl()(state(), [batch()])
    low = make_rl_step(SMALL, Loss(), OPTIMIZER, passes=Passes(dtype="bfloat16"))
    found, near = low(state(), [batch()])
    assert {x.dtype for x in jax.tree.leaves(found.params)} == {np.dtype("float32")}
    one, other = (np.concatenate([g.ravel() for g in jax.tree.leaves(gradient(s))]) for s in (whole, found))
    assert np.linalg.norm(other) == pytest.approx(np.linalg.norm(one), rel=0.05)
    assert np.linalg.norm(other - one) < 0.1 * np.linalg.norm(one)
    assert float(near["loss"]) == pytest.approx(float(figures["loss"]), abs=0.05)


def test_a_step_compiles_once_however_many_micro_batches_it_has(monkeypatch):
    traces = []
    score = token_logprobs
    monkeypatch.setattr("trainer.step.token_logprobs", lambda *a, **k: traces.append(1) or score(*a, **k))
    step, now = make_sft_step(SMALL, OPTIMIZER), state()
    now, _ = step(now, parts(LAYOUTS["packed"]))
    first = len(traces)
    for used in (4, 3, 1):
        now, _ = step(now, parts(LAYOUTS["packed"], range(used)))
    assert len(traces) == first > 0


def test_positive_advantages_make_what_was_sampled_likelier():
    now, b = state(), batch()
    b.advantages[:] = 1.0
    before = float(sft()(state(), [b])[1]["loss"])
    for _ in range(3):
        now, _ = rl()(now, [b])
    assert float(sft()(now, [b])[1]["loss"]) < before


def test_a_broken_number_shows_in_the_figures():
    b = batch()
    b.behaviour[0, 3] = np.nan
    _, figures = rl()(state(), [b])
    assert not np.isfinite(float(figures["grad_norm"]))


def test_another_process_makes_the_same_bytes():
    """By programs that it has compiled itself."""
    now = state()
    for _ in range(2):
        now, _ = rl()(now, parts(LAYOUTS["packed"]))
    code = (
        f"import runpy, sys; sys.path[:0] = {[p for p in sys.path if p]!r}\n"
        f"globals().update(runpy.run_path({__file__!r}))\n"
        "now = state()\n"
        "for _ in range(2): now, _ = rl()(now, parts(LAYOUTS['packed']))\n"
        "print(params_digest(now.params))\n"
    )
    env = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
    assert found.strip() == params_digest(now.params)
