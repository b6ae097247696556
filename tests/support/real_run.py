"""`headrace run` with its real processes on a model of a few thousand parameters that learns to answer at once."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from storage.open import open_store

COMMAND = Path(sys.executable).with_name("headrace")
STEPS, ROWS = 24, 8
CONFIG = f"""
name = "small"
[model.architecture]
hidden_size = 16
intermediate_size = 24
num_hidden_layers = 1
num_attention_heads = 2
num_key_value_heads = 1
[[warm_up]]
name = "habit"
data = "demos.jsonl"
steps = 40
batch_size = 8
max_length = 32
optimizer = {{learning_rate = 2e-2}}
[environment]
environment = "slow:Slow"
reward = "slow:parity"
[rollout]
slots = 8
max_concurrency = 8
max_length = 32
max_tokens_per_turn = 4
heartbeat_seconds = 0.3
lease_seconds = 4
seal_seconds = 0.5
[rl]
tasks = "train.jsonl"
steps = {STEPS}
groups_per_batch = 2
group_size = {ROWS // 2}
checkpoint_every = 5
window_seconds = 0.05
optimizer = {{learning_rate = 1e-2}}
[evaluation]
tasks = "heldout.jsonl"
temperatures = [1.0]
workers = 1
[promotion]
tasks = "gate.jsonl"
"""
SLOW = """
import asyncio
from rollout.environments import TaskEnvironment

class Slow(TaskEnvironment):
    async def step(self, action):
        await asyncio.sleep(0.3)
        return await super().step(action)

def parity(task, messages):
    return float(len(messages[-1].content) % 2)
"""

PACED = """
import asyncio
from pathlib import Path
from rollout.environments import TaskEnvironment

class Slow(TaskEnvironment):
    async def step(self, action):
        await asyncio.sleep(float(Path(__file__).with_name("pace").read_text()))
        return await super().step(action)

def parity(task, messages):
    return float(len(messages[-1].content) % 2)
"""
"""An environment that is as slow as the file `pace` beside it says by now."""


@dataclass(frozen=True)
class Project:
    """A configuration with its data, the store of its runs, and the environment of its commands."""

    folder: Path
    root: Path
    environment: dict[str, str]

    def argv(self, command: str, *words: str) -> list[str]:
        subject = [str(self.folder / "small.toml")] if command in ("run", "validate") else []
        return [str(COMMAND), command, *subject, *words, "--root", str(self.root)]

    def headrace(
        self, command: str, *words: str, seconds: float = 300, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        env = self.environment | environment
        argv = self.argv(command, *words)
        return subprocess.run(argv, capture_output=True, text=True, env=env, check=False, timeout=seconds)

    def start(self, command: str, log: Path) -> "subprocess.Popen[bytes]":
        """Start a command whose output goes to a file."""
        with log.open("wb") as out:
            return subprocess.Popen(self.argv(command), stdout=out, stderr=out, env=self.environment)

    def records(self) -> int:
        """Ledger records of all RL stages of the run."""
        return len([key for key in open_store(str(self.root)).list("runs/small/") if "/ledger/" in key])


def lay_out(folder: Path, api: str) -> Project:
    """Write a project whose commands use the Prefect server at `api`."""
    (folder / "small.toml").write_text(CONFIG)
    (folder / "slow.py").write_text(SLOW)
    demos = [[("user", f"{i}+{i}"), ("assistant", "ab"[: 1 + i % 2])] for i in range(16)]
    write(folder / "demos.jsonl", [{"messages": [{"role": r, "content": c} for r, c in demo]} for demo in demos])
    for name, count in (("train", 6), ("heldout", 12), ("gate", 12)):
        write(
            folder / f"{name}.jsonl",
            [{"id": f"{name}-{i}", "prompt": f"{name} {i}", "answer": "a"} for i in range(count)],
        )
    return Project(folder, folder / "root", as_users_have_it() | {"PREFECT_API_URL": api})


def as_users_have_it() -> dict[str, str]:
    """The environment without what is set to make tests quick, and without a store."""
    return {k: v for k, v in os.environ.items() if k not in ("HEADRACE_ROOT", "XLA_FLAGS")}


def write(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def until(done: Callable[[], bool], what: str, seconds: float = 180.0) -> None:
    """Wait for something that is bound to happen."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.05)


def children(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
