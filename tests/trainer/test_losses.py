"""Policy losses against an independent float64 reading of the papers, token by token in plain loops."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from schemas.algorithms import POLICY_LOSSES as NAMES
from schemas.algorithms import Loss
from schemas.errors import RequestError
from trainer.losses import POLICY_LOSSES, Terms, find_policy_loss, ppo

B, T = 6, 7
SETTINGS = {
    "ppo": [
        Loss(),
        Loss(clip_low=0.1, clip_high=0.3, dual_clip=None),
        Loss(algorithm="dapo", dual_clip=1.5),
    ],
    "gspo": [Loss(algorithm="gspo"), Loss(algorithm="gspo", clip_low=0.2, clip_high=0.1)],
    "gspo_token": [Loss(algorithm="gspo_token"), Loss(algorithm="gspo_token", clip_low=0.2, clip_high=0.1)],
    "cispo": [Loss(algorithm="cispo"), Loss(algorithm="cispo", clip_low=0.3, clip_high=0.5)],
}
CASES = [(name, settings) for name, all_settings in SETTINGS.items() for settings in all_settings]


@pytest.fixture
def arrays():
    draw = np.random.default_rng(3)
    now = draw.normal(-1.5, 0.8, (B, T))
    then = now + draw.normal(0, 0.6, (B, T))
    mask = draw.random((B, T)) < 0.6
    mask[:, 2] = True
    return now, then, draw.normal(0, 1, B), mask.astype(np.float64)


def terms(now, then, advantages, mask):
    return Terms(jnp.asarray(now), jnp.asarray(then), jnp.asarray(np.repeat(advantages[:, None], T, 1)), mask)


def total(logprobs, name, made, settings):
    return POLICY_LOSSES[name](made._replace(logprobs=logprobs), settings).loss.sum()


def clip(x, low, high):
    return min(max(x, low), high)


def surrogate(ratio, advantage, settings):
    """Loss and whether the clip decided it: PPO's equation 7."""
    held = clip(ratio, 1 - settings.clip_low, 1 + settings.clip_high) * advantage
    return -min(ratio * advantage, held), held < ratio * advantage


def expected(name, settings, now, then, advantage, mask, t):
    """Loss of token t of a row, and whether the clip decided it, straight from the paper's formula."""
    gaps = now - then
    if name == "ppo":
        loss, clipped = surrogate(math.exp(gaps[t]), advantage, settings)
        if settings.dual_clip is not None and advantage < 0 and loss > -settings.dual_clip * advantage:
            return -settings.dual_clip * advantage, True
        return loss, clipped
    if name in ("gspo", "gspo_token"):
        chosen = [g for g, m in zip(gaps, mask, strict=True) if m]
        return surrogate(math.exp(sum(chosen) / len(chosen)), advantage, settings)
    weight = clip(math.exp(gaps[t]), 1 - settings.clip_low, 1 + settings.clip_high)
    return -weight * advantage * now[t], weight != math.exp(gaps[t])


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_a_loss_is_the_papers(arrays, name, settings):
    now, then, advantages, mask = arrays
    found = POLICY_LOSSES[name](terms(*arrays), settings)
    for row in range(B):
        for t in range(T):
            loss, clipped = expected(name, settings, now[row], then[row], advantages[row], mask[row], t)
            assert found.loss[row, t] == pytest.approx(loss, rel=1e-4, abs=1e-5)
            assert bool(found.clipped[row, t]) == clipped


def weights(name, settings, now, then, advantage, mask):
    """The factor of d log-prob in a row's summed gradient at each token, by the paper's gradient."""
    out = np.zeros(T)
    for t in range(T):
        loss, clipped = expected(name, settings, now, then, advantage, mask, t)
        if name == "cispo":
            out[t] = loss / now[t]
        elif name == "gspo":  # each token's loss is that of the whole row
            out += 0 if clipped else loss * mask / mask.sum()
        elif not clipped:
            out[t] = loss
    return out


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_a_gradient_is_the_papers(arrays, name, settings):
    now, then, advantages, mask = arrays
    made = terms(*arrays)
    found = jax.grad(total)(made.logprobs, name, made, settings)
    for row in range(B):
        wanted = weights(name, settings, now[row], then[row], advantages[row], mask[row])
        np.testing.assert_allclose(found[row], wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["ppo", "gspo"])
def test_a_gradient_is_that_of_finite_differences(arrays, name):
    """For the losses whose gradient is that of their value (the others hold a weight constant)."""
    now, then, advantages, mask = arrays
    made, settings = terms(*arrays), SETTINGS[name][-1]
    found = jax.grad(total)(made.logprobs, name, made, settings)

    def value(row, t, by):
        moved = now[row].copy()
        moved[t] += by
        return sum(expected(name, settings, moved, then[row], advantages[row], mask[row], k)[0] for k in range(T))

    for row in range(B):
        for t in range(T):
            slope = (value(row, t, 1e-6) - value(row, t, -1e-6)) / 2e-6
            assert found[row, t] == pytest.approx(slope, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", ["ppo", "gspo_token", "cispo"])
def test_a_token_of_the_policy_that_sampled_has_the_plain_policy_gradient(arrays, name):
    now, _, advantages, mask = arrays
    made = terms(now, now, advantages, mask)
    found = jax.grad(total)(made.logprobs, name, made, SETTINGS[name][0])
    np.testing.assert_allclose(found, np.repeat(-advantages[:, None], T, axis=1), rtol=1e-5)


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_ratios_beyond_all_bounds_stay_finite(name):
    now, then = np.array([[0.0, -500.0]]), np.array([[-500.0, 0.0]])
    for advantage in (1.0, -1.0):
        made = Terms(jnp.asarray(now), jnp.asarray(then), jnp.full((1, 2), advantage), jnp.ones((1, 2)))
        settings = SETTINGS[name][0].model_copy(update={"dual_clip": None})
        found = jax.value_and_grad(
            lambda x, m=made, s=settings: POLICY_LOSSES[name](m._replace(logprobs=x), s).loss.sum()
        )
        value, slope = found(made.logprobs)
        assert np.isfinite(value) and np.isfinite(slope).all()


def test_every_name_of_the_configuration_has_its_loss():
    assert tuple(POLICY_LOSSES) == NAMES


def test_a_loss_of_the_users_own_is_found(tmp_path):
    (tmp_path / "own.py").write_text(
        "from trainer.losses import ppo\n\n\ndef loss(terms, settings):\n    return ppo(terms, settings)\n"
    )
    made = terms(np.zeros((1, T)), np.zeros((1, T)), np.ones(1), np.ones((1, T)))
    own = find_policy_loss("own:loss", str(tmp_path))
    assert own(made, Loss()).loss.tolist() == ppo(made, Loss()).loss.tolist()
    with pytest.raises(RequestError, match="defines no `other`"):
        find_policy_loss("own:other", str(tmp_path))
