"""A small configuration on disk, and stand-ins for the processes that need models."""

import importlib
import json
import os
from pathlib import Path

import pytest

from tasks import processes

FAKES = Path(__file__).parent / "fakes"

CONFIG = """
name = "small"
[model.architecture]
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 2
[[warm_up]]
name = "habit"
data = "demos.jsonl"
steps = 2
optimizer = {learning_rate = 1e-3}
[environment]
tools = ["calculator"]
[rollout]
workers = 2
[rl]
tasks = "train.jsonl"
steps = 3
optimizer = {learning_rate = 1e-3}
[evaluation]
tasks = "heldout.jsonl"
temperatures = [1.0]
[promotion]
tasks = "gate.jsonl"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The folder of a configuration `small.toml` with its data."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "small.toml").write_text(CONFIG)
    demo = {"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]}
    (folder / "demos.jsonl").write_text(json.dumps(demo) + "\n")
    for name, count in (("train", 4), ("heldout", 20), ("gate", 20)):
        rows = [{"id": f"{name}-{i}", "prompt": f"{name} {i}?", "answer": str(i)} for i in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return folder


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the supervising tasks start stand-ins."""
    use_fakes(monkeypatch)


def use_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put stand-ins in the place of the commands of our processes."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("HEADRACE_FAKES", "1")
    monkeypatch.syspath_prepend(str(FAKES))
    commands = importlib.import_module("fake_commands").COMMANDS
    for name, command in commands.items():
        monkeypatch.setattr(processes, name, command)


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "root")
