"""The coding example end to end: every patch, and a run with the policy by hand."""

import json
import os
import shutil
from pathlib import Path

import pytest
from support.coding import EXAMPLE, SPLITS, tasks
from support.recipes import headrace

MODEL = Path(os.environ.get("HEADRACE_SMOLLM2", EXAMPLE.parent / "smollm2" / "model"))
BUILT = (MODEL / "config.json").exists()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("prlimit"), reason="needs Linux with prlimit"),
]


def configured() -> list[str]:
    return [str(EXAMPLE / "coding.toml"), "--set", f"model.path={MODEL}"]


@pytest.mark.timeout(3600)
def test_every_patch_is_proven(tmp_path: Path) -> None:
    """Also that none needs more room than the real model has, where its tokenizer is there."""
    measured = ["--set", "evaluation.tasks=data/held_out.parquet", "--set", "promotion.tasks=data/gate.parquet"]
    words = [*configured(), *measured] if BUILT else [str(EXAMPLE / "scripted.toml")]
    found = json.loads(headrace("validate", *words, "--json", root=tmp_path))
    assert sum(f["gold"] for f in found["files"]) == sum(len(tasks(split)) for split in SPLITS)


@pytest.mark.timeout(3600)
def test_the_policy_by_hand_is_paid_in_a_run(tmp_path: Path) -> None:
    headrace("run", str(EXAMPLE / "scripted.toml"), root=tmp_path)
    found = json.loads(headrace("status", "coding-scripted", "--json", root=tmp_path))
    assert found["state"] == "finished" and found["rl"]["step"] == 3
    assert all(0.5 < e["success"] < 1.0 for e in found["evaluations"])  # it gives up one time in four
    audit = json.loads(headrace("audit", "verify", "coding-scripted", "--json", root=tmp_path))
    assert audit["ok"] and audit["dispositions"]["trained"] == 24
