"""The calculator with adapters alone, through the command: a warm-up and RL, the weights they leave, and the audit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from models.pure import Params, flatten
from models.stored import load_weights
from models.weights import load_folder
from schemas.manifest import WeightsRef
from storage.audit_runs import find_checkpoint, read_spec
from storage.objects import ObjectStore
from storage.open import open_store

COMMAND = Path(sys.executable).with_name("headrace")
EXAMPLE = Path(__file__).parents[2] / "examples" / "calculator" / "calculator.toml"
RATES = ("warm_up.habit.optimizer.learning_rate=5e-3", "rl.optimizer.learning_rate=2e-3")
SETTINGS = ("lora={rank=8,alpha=16}", "evaluation.temperatures=[1.0]", *RATES)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def headrace(*words: str) -> str:
    env = {k: v for k, v in os.environ.items() if k != "HEADRACE_ROOT"}
    done = subprocess.run([str(COMMAND), *words], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def stored(store: ObjectStore, ref: WeightsRef) -> Params:
    return flatten(load_weights(store, ref)[1])


def moved(before: Params, after: Params) -> list[str]:
    return sorted(name for name in after if not np.array_equal(before[name], after[name]))


def test_adapters_alone_learn_the_calculator(tmp_path: Path) -> None:
    root = ("--root", str(tmp_path / "root"))
    headrace("run", str(EXAMPLE), *root, *(word for setting in SETTINGS for word in ("--set", setting)))

    status = json.loads(headrace("status", "calculator", "--json", *root))
    success = {e["name"]: e["success"] for e in status["evaluations"] if e["setting"] == "evaluation.tasks"}
    print(f"held-out success: {success}")
    assert success["candidate"] >= 0.85 > success["warm-up"]
    assert json.loads(headrace("audit", "verify", "calculator", "--json", *root))["ok"]

    headrace("export", "calculator", "--out", str(tmp_path / "out"), *root)
    store = open_store(str(tmp_path / "root"))
    base, manifest = find_checkpoint(store, "calculator", None)
    before, after = stored(store, read_spec(store, base).initial), flatten(load_folder(tmp_path / "out")[1])
    held = load_file(tmp_path / "out" / "adapter" / "adapter_model.safetensors")
    pairs = {name.split(".", 2)[2].rsplit(".", 2)[0] for name in held}
    assert moved(before, after) == sorted(f"{module}.weight" for module in pairs)
    assert len(pairs) == 2 * 7, "every projection of both layers, and nothing else"
    for module in pairs:
        a, b = (held[f"base_model.model.{module}.lora_{side}.weight"] for side in "AB")
        merged = np.asarray(before[f"{module}.weight"], np.float64) + 2.0 * b.astype(np.float64) @ a
        np.testing.assert_allclose(after[f"{module}.weight"], merged, atol=1e-5)
    assert "## Adapters" in (tmp_path / "out" / "README.md").read_text()
    snapshot = sum(head.size for name in manifest.files if (head := store.head(f"{manifest.prefix}/{name}")))
    weights = sum(head.size for key in store.list(f"{manifest.policy.prefix}/model") if (head := store.head(key)))
    print(f"a snapshot has {snapshot} bytes, the weights alone {weights}")
    assert snapshot < weights
