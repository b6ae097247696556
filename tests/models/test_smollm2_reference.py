"""SmolLM2-135M computes what transformers computes.

`HEADRACE_REFS` is the folder of the reference values, `HEADRACE_SMOLLM2` that of the model which
`examples/smollm2/build.py` made (default: where it puts it).
"""

import json
import os
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.cache import empty_cache
from models.chat import chat_format
from models.logprobs import token_logprobs
from models.pure import apply, extend
from models.tokenizer import Tokenizer, tokenizer_from_files
from models.weights import load_folder
from schemas.messages import Message

REFS = Path(os.environ.get("HEADRACE_REFS", "/nonexistent"))
MODEL = Path(os.environ.get("HEADRACE_SMOLLM2", Path(__file__).parents[2] / "examples/smollm2/model"))
STEM = "smollm2-135m-instruct"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (REFS / f"{STEM}.npz").exists(), reason="HEADRACE_REFS names no folder of references"),
    pytest.mark.skipif(not (MODEL / "config.json").exists(), reason="examples/smollm2/build.py has not been run"),
]


@pytest.fixture(scope="module")
def model():
    config, params = load_folder(MODEL)
    return config, jax.tree.map(jnp.asarray, params)


@pytest.fixture(scope="module")
def references() -> list[dict[str, np.ndarray]]:
    held = np.load(REFS / f"{STEM}.npz")
    kinds = ("ids", "greedy", "last_logits", "top20_ids", "top20_logits", "prompt_logprobs")
    count = sum(name.startswith("ids_") for name in held.files)
    return [{kind: held[f"{kind}_{i}"] for kind in kinds} for i in range(count)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizer_from_files(lambda name: (MODEL / name).read_bytes(), [p.name for p in MODEL.iterdir()], "model")


def as_row(ids: np.ndarray) -> tuple[jax.Array, jax.Array, jax.Array]:
    return jnp.asarray(ids)[None], jnp.arange(len(ids))[None], jnp.ones((1, len(ids)), bool)


def test_log_probs_equal_those_of_transformers(model, references):
    config, params = model
    worst = 0.0
    for one in references:
        logs, _ = jax.jit(partial(token_logprobs, config))(params, *as_row(one["ids"]))
        worst = max(worst, float(np.abs(np.asarray(logs)[0, 1:] - one["prompt_logprobs"]).max()))
    print(f"largest difference of a prompt's log-prob: {worst:.2e}")
    assert worst < 1e-3


def test_logits_equal_those_of_transformers(model, references):
    config, params = model
    worst = 0.0
    for one in references:
        logits = np.asarray(jax.jit(partial(apply, config))(params, *as_row(one["ids"])))[0]
        top = np.take_along_axis(logits, one["top20_ids"].astype(int), axis=-1)
        worst = max(worst, np.abs(top - one["top20_logits"]).max(), np.abs(logits[-1] - one["last_logits"]).max())
    print(f"largest difference of a logit: {worst:.2e}")
    assert worst < 1e-3


def test_greedy_continuations_equal_those_of_transformers(model, references):
    config, params = model
    grow = jax.jit(partial(extend, config), donate_argnums=2)
    for one in references:
        prompt, wanted = one["ids"].tolist(), one["greedy"].tolist()
        cache, made = empty_cache(config, rows=1, length=len(prompt) + len(wanted)), []
        tokens = jnp.asarray(prompt)[None]
        lengths = jnp.zeros(1, jnp.int32)
        while len(made) < len(wanted):
            counts = jnp.full(1, tokens.shape[1], jnp.int32)
            logits, cache = grow(params, tokens, cache, lengths, counts)
            made.append(int(logits[0, -1].argmax()))
            lengths, tokens = lengths + counts, jnp.asarray([[made[-1]]])
        assert made == wanted


def test_chat_prompts_are_tokenized_as_by_the_models_template(references, tokenizer):
    texts = json.loads((REFS / f"{STEM}.json").read_text())
    written = chat_format(tokenizer, [])
    for one, text in zip(references, texts, strict=False):
        if text.get("chat"):
            assert written.prompt([Message("user", text["prompt"])], []) == one["ids"].tolist()
            assert tokenizer.decode(one["greedy"].tolist()) == text["text"]
