"""The SmolLM2 example end to end: three steps of the real model, its evaluations, the gate, and the audit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from models.chat import chat_format
from models.tokenizer import tokenizer_from_files
from schemas.messages import Message
from storage.rows import read_tasks
from tasks.request import read_config

COMMAND = Path(sys.executable).with_name("headrace")
EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2"
MODEL = Path(os.environ.get("HEADRACE_SMOLLM2", EXAMPLE / "model"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (MODEL / "config.json").exists(), reason="examples/smollm2/build.py has not been run"),
]


def headrace(*arguments: str) -> str:
    done = subprocess.run([str(COMMAND), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_replies_fit_behind_every_prompt() -> None:
    config, _ = read_config(str(EXAMPLE / "smollm2.toml"))
    names = [p.name for p in MODEL.iterdir()]
    chat = chat_format(tokenizer_from_files(lambda name: (MODEL / name).read_bytes(), names, "model"), [])
    for split in ("train", "held_out", "gate"):
        for task in read_tasks((EXAMPLE / "data" / f"{split}.jsonl").read_bytes(), "jsonl", split):
            opening = [Message("system", config.environment.system_prompt), Message("user", task.prompt)]
            assert len(chat.prompt(opening, [])) + config.rollout.max_tokens_per_turn <= config.rollout.max_length


@pytest.mark.timeout(3600)
def test_three_steps_of_the_real_model(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    root = ("--root", str(tmp_path / "root"))
    config = (str(EXAMPLE / "smollm2.toml"), "--set", f"model.path={MODEL}", *root)
    assert "learner: step 3/3" in headrace("run", *config)

    found = json.loads(headrace("status", "smollm2", "--json", *root))
    assert found["state"] == "finished" and found["rl"]["step"] == found["rl"]["policy_version"] == 3
    assert found["rl"]["staleness"]["max"] <= found["rl"]["staleness"]["bound"]
    held_out = [e for e in found["evaluations"] if e["n"] == 20]
    assert {e["checkpoint"] for e in held_out} >= {"smollm2@3"} and any(e["success"] > 0 for e in held_out)

    audit = json.loads(headrace("audit", "verify", "smollm2", "--json", *root))
    assert audit["ok"] and audit["dispositions"]["trained"] == 48
    assert "nothing to do" in headrace("run", *config)
