"""Adapters that we write, read by PEFT itself: `HEADRACE_TORCH_PYTHON` names a Python with peft and transformers."""

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.tiny import TINY, lively

from models.pure import apply, init_params, shapes
from models.weights import to_files
from schemas.lora import LoRA
from schemas.manifest import WeightsRef
from trainer.lora import init_adapters, merged
from trainer.peft_files import peft_files

PYTHON = os.environ.get("HEADRACE_TORCH_PYTHON", "")
SHAPE = dataclasses.replace(TINY, head_dim=4)
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
READ = """
import json, sys, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
base = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
model = PeftModel.from_pretrained(base, sys.argv[2])
with torch.no_grad():
    print(json.dumps(model(torch.tensor([json.loads(sys.argv[3])])).logits[0].tolist()))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="HEADRACE_TORCH_PYTHON names no Python with peft and transformers"),
]


def write(folder: Path, files: dict[str, bytes]) -> str:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return str(folder)


@pytest.mark.parametrize("stabilized", [False, True])
def test_peft_says_what_the_merged_weights_say(tmp_path: Path, stabilized: bool) -> None:
    lora = LoRA(rank=3, alpha=5.0, rank_stabilized=stabilized, targets=("q_proj", "mlp.*"))
    base, draw = lively(init_params(SHAPE, 0)), np.random.default_rng(2)
    fresh = init_adapters(shapes(SHAPE), lora, 0)
    adapters = jax.tree.map(lambda x: x + draw.normal(0, 0.3, x.shape).astype(np.float32), fresh)
    folders = [
        write(tmp_path / "base", to_files(SHAPE, base)),
        write(tmp_path / "adapter", peft_files(adapters, lora, WeightsRef(prefix="base", sha256="b" * 64))),
    ]
    done = subprocess.run(
        [PYTHON, "-c", READ, *folders, json.dumps(TOKENS)], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    ours = apply(SHAPE, merged(adapters, base, lora.scale), *_row())
    found, plain = np.asarray(json.loads(done.stdout.splitlines()[-1])), apply(SHAPE, base, *_row())
    gap = float(np.abs(found - np.asarray(ours)[0]).max())
    print(f"largest difference of a logit: {gap:.1e}, of up to {np.abs(found).max():.1f}")
    assert gap < 1e-4 * np.abs(found).max()
    assert np.abs(found - np.asarray(plain)[0]).max() > 100 * gap, "the adapters must show"


def _row() -> tuple[jax.Array, jax.Array, jax.Array]:
    return jnp.asarray([TOKENS]), jnp.arange(len(TOKENS))[None], jnp.ones((1, len(TOKENS)), bool)
