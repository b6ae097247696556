"""A real model against what transformers computed from the same weights, stored in a folder of references."""

import os
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.cache import empty_cache
from models.config import DecoderConfig
from models.logprobs import token_logprobs
from models.pure import Params, apply, extend
from models.tokenizer import Tokenizer, tokenizer_from_files
from models.weights import load_folder

REFS = Path(os.environ.get("HEADRACE_REFS", "/nonexistent"))
KINDS = ("ids", "greedy", "last_logits", "top20_ids", "top20_logits", "prompt_logprobs")
Model = tuple[DecoderConfig, Params]
Reference = dict[str, np.ndarray]


def needed(stem: str, model: Path, maker: str) -> list[pytest.MarkDecorator]:
    """Marks of a test that compares the model in a folder, made by `maker`, with the references called `stem`."""
    return [
        pytest.mark.slow,
        pytest.mark.skipif(not (REFS / f"{stem}.npz").exists(), reason="HEADRACE_REFS names no folder of references"),
        pytest.mark.skipif(not (model / "config.json").exists(), reason=f"{maker} has not been run"),
    ]


def load(folder: Path) -> Model:
    config, params = load_folder(folder)
    return config, jax.tree.map(jnp.asarray, params)


def tokenizer_in(folder: Path) -> Tokenizer:
    return tokenizer_from_files(lambda name: (folder / name).read_bytes(), [p.name for p in folder.iterdir()], "model")


def read_references(stem: str) -> list[Reference]:
    """Per prompt: its ids and greedy continuation [T], logits and log-probs."""
    held = np.load(REFS / f"{stem}.npz")
    count = sum(name.startswith("ids_") for name in held.files)
    return [{kind: held[f"{kind}_{i}"] for kind in KINDS} for i in range(count)]


def logprob_gap(model: Model, references: list[Reference]) -> float:
    """The largest difference of a prompt's log-prob."""
    config, params = model
    worst = 0.0
    for one in references:
        logs, _ = jax.jit(partial(token_logprobs, config))(params, *_as_row(one["ids"]))
        worst = max(worst, float(np.abs(np.asarray(logs)[0, 1:] - one["prompt_logprobs"]).max()))
    print(f"largest difference of a prompt's log-prob: {worst:.2e}")
    return worst


def logit_gap(model: Model, references: list[Reference]) -> float:
    """The largest difference among each place's twenty likeliest tokens and all tokens of the last place."""
    config, params = model
    worst = 0.0
    for one in references:
        logits = np.asarray(jax.jit(partial(apply, config))(params, *_as_row(one["ids"])))[0]
        top = np.take_along_axis(logits, one["top20_ids"].astype(int), axis=-1)
        worst = max(worst, np.abs(top - one["top20_logits"]).max(), np.abs(logits[-1] - one["last_logits"]).max())
    print(f"largest difference of a logit: {worst:.2e}")
    return worst


def continued(model: Model, prompt: list[int], count: int) -> list[int]:
    """So many likeliest tokens after the prompt, through the cache."""
    config, params = model
    grow = jax.jit(partial(extend, config), donate_argnums=2)
    cache, made = empty_cache(config, rows=1, length=len(prompt) + count), []
    tokens, lengths = jnp.asarray(prompt)[None], jnp.zeros(1, jnp.int32)
    while len(made) < count:
        counts = jnp.full(1, tokens.shape[1], jnp.int32)
        logits, cache = grow(params, tokens, cache, lengths, counts)
        made.append(int(logits[0, -1].argmax()))
        lengths, tokens = lengths + counts, jnp.asarray([[made[-1]]])
    return made


def _as_row(ids: np.ndarray) -> tuple[jax.Array, jax.Array, jax.Array]:
    return jnp.asarray(ids)[None], jnp.arange(len(ids))[None], jnp.ones((1, len(ids)), bool)
