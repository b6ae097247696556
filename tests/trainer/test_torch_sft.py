"""Supervised steps against torch and transformers on the same batches, with the same optimizer, in float32.

`tests/trainer/references/make_torch_sft.py` made the reference losses. `HEADRACE_SMOLLM2` is the folder of the model
that `examples/smollm2/build.py` made (default: where it puts it).
"""

import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest

from models.chat import chat_format
from models.config import DecoderConfig
from models.pure import nest, shapes
from models.tokenizer import tokenizer_from_files
from models.weights import load_folder
from schemas import data
from schemas.optimizer import Optimizer
from trainer.optimizer import make_optimizer
from trainer.packing import packed, padded
from trainer.sft_data import collate
from trainer.step import init_state, make_sft_step
from trainer.streams import encode

REFERENCES = Path(__file__).parent / "references"
MODEL = Path(os.environ.get("HEADRACE_SMOLLM2", Path(__file__).parents[2] / "examples/smollm2/model"))


def read(name):
    return json.loads((REFERENCES / name).read_text())


def losses(config, params, reference, layout):
    """The loss of each batch before its update."""
    optimizer = make_optimizer(Optimizer(**reference["optimizer"]), len(reference["batches"]))
    step, state = make_sft_step(config, optimizer), init_state(jax.tree.map(jax.numpy.array, params), optimizer)
    found = []
    for rows in reference["batches"]:
        parts = collate([(row["tokens"], list(map(bool, row["mask"]))) for row in rows], layout)
        state, figures = step(state, parts)
        found.append(float(figures["loss"]))
    return found


@pytest.mark.parametrize("layout", [padded(4, 24), packed(1, 48, 24, 4)], ids=["padded", "packed"])
def test_a_tiny_model_learns_as_it_does_in_torch(layout):
    reference = read("torch_sft_tiny.json")
    shape = reference["shape"]
    config = DecoderConfig(**shape, head_dim=shape["hidden_size"] // shape["num_attention_heads"])
    drawn = {}
    for number, (name, size) in enumerate(sorted(shapes(config).items())):
        values = np.random.default_rng([5, number]).normal(0, 0.1, size) + (len(size) == 1)
        drawn[name] = values.astype(np.float32)
    found = losses(config, nest(drawn), reference, layout)
    assert len(found) == 20 and found[-1] < found[0] - 0.3
    np.testing.assert_allclose(found, reference["losses"], atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(not (MODEL / "config.json").exists(), reason="examples/smollm2/build.py has not been run")
def test_smollm2_learns_as_it_does_in_torch():
    """Our chat format writes the ids and marks the tokens that the model's own template gives; so do 20 updates."""
    reference = read("torch_sft_smollm2.json")
    tokenizer = tokenizer_from_files(
        lambda name: (MODEL / name).read_bytes(), [p.name for p in MODEL.iterdir()], "model"
    )
    for row in (row for rows in reference["batches"] for row in rows):
        shown = data.demonstration({"messages": row["messages"]}, "reference")
        assert encode(shown, chat_format(tokenizer, ())) == (row["tokens"], list(map(bool, row["mask"])))
    config, params = load_folder(MODEL)
    found = losses(config, params, reference, padded(4, 64))
    worst = float(np.abs(np.array(found) - reference["losses"]).max())
    print(f"largest difference of a loss in 20 steps: {worst:.1e}; {found[0]:.3f} to {found[-1]:.3f}")
    assert worst < 1e-3
