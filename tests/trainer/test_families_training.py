"""On every family's checkpoint: sampled log-probs are the learner's, and a step moves every tensor.

The checkpoints are those of `tests/models/families`: windows shorter than a turn, caps, rotary bases by layer.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import parity
from support.tokenizing import BYTES

from models.config import DecoderConfig
from models.logprobs import token_logprobs
from models.pure import Params, flatten
from models.stored import load_weights, save_weights
from models.weights import load_folder, params_digest
from rollout.engine import Request, Sampling
from rollout.jax_engine import JaxEngine
from schemas.algorithms import Loss
from schemas.optimizer import Optimizer
from storage.memory import MemoryStore
from trainer.batch import Batch, empty, place_rows
from trainer.optimizer import make_optimizer
from trainer.packing import padded
from trainer.step import Step, init_state, make_rl_step, make_sft_step

LENGTH, ROWS = 48, 4
QUICK = {"gemma3"}
"""Has most of what sets families apart; compiling for the others takes too long for every change."""
OPTIMIZER = make_optimizer(Optimizer(learning_rate=1e-2), 10)
folders = pytest.mark.parametrize(
    "folder",
    [pytest.param(f, id=f.name, marks=[] if f.name in QUICK else [pytest.mark.slow]) for f in parity.FOLDERS],
)


def learner_logprobs(config: DecoderConfig, params: Params, tokens: np.ndarray) -> np.ndarray:
    """[R, T] as the learner computes them."""
    real, places = np.ones_like(tokens, bool), np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    return np.asarray(jax.jit(token_logprobs, static_argnums=0)(config, params, tokens, places, real)[0])


@folders
async def test_sampled_log_probs_are_the_learner_s(folder: Path) -> None:
    """Over two turns, the second upon kept keys and values, with prompts longer than the windows."""
    config, params = load_folder(folder)
    engine = JaxEngine(config, params, version=0, slots=2, max_length=LENGTH, decode_steps=2)
    draw = np.random.default_rng(0)
    stream = draw.integers(0, config.vocab_size, 11).tolist()
    sampled: dict[int, float] = {}
    try:
        for turn in range(2):
            done = await engine.generate(Request("s", tuple(stream), Sampling(12, 1.0, ()), turn))
            sampled |= dict(enumerate(done.logprobs, len(stream)))
            stream += [*done.token_ids, *draw.integers(0, config.vocab_size, 5).tolist()]
    finally:
        await engine.close()
    wanted = learner_logprobs(config, params, np.asarray([stream[:LENGTH]], np.int32))[0]
    assert len(sampled) == 24
    assert list(sampled.values()) == pytest.approx(wanted[list(sampled)].tolist(), abs=1e-4)


def batch(config: DecoderConfig, params: Params) -> Batch[np.ndarray]:
    """Rows over the whole vocabulary, so that every embedding is looked up; rewards differ."""
    out, draw = empty(padded(ROWS, LENGTH)), np.random.default_rng(1)
    tokens = np.arange(ROWS * LENGTH, dtype=np.int32).reshape(ROWS, LENGTH) * 7 % config.vocab_size
    place_rows(out, [[line] for line in tokens.tolist()])
    out.mask[:, 8:], out.weights[:] = 1.0, 1.0
    out.advantages[:] = [1.0, -1.0, 0.5, -0.5]
    out.behaviour[:] = learner_logprobs(config, params, tokens) + draw.normal(0, 0.01, tokens.shape)
    return out


@folders
@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_a_step_moves_every_tensor_and_its_weights_come_back_bit_by_bit(folder: Path, kind: str) -> None:
    config, params = load_folder(folder)
    step: Step = make_rl_step(config, Loss(), OPTIMIZER) if kind == "rl" else make_sft_step(config, OPTIMIZER)
    state, figures = step(init_state(jax.tree.map(jnp.array, params), OPTIMIZER), [batch(config, params)])
    assert np.isfinite(float(figures["loss"])) and float(figures["grad_norm"]) > 0
    before, after = flatten(params), flatten(state.params)
    assert [name for name in before if np.array_equal(before[name], after[name])] == []
    store = MemoryStore("test")
    ref = save_weights(store, "weights", config, state.params, BYTES, "float32", "test")
    again, read, _ = load_weights(store, ref)
    assert again == config and params_digest(read) == params_digest(state.params) == ref.sha256
