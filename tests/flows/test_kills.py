"""kill -9 of the learner, of a worker and of the whole flow in the middle of RL, with the real processes.

The next `headrace run` goes on, and the audit finds every trajectory accounted for.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows.cli import main
from storage.open import open_store

pytestmark = [pytest.mark.usefixtures("prefect_server"), pytest.mark.timeout(1200)]
STEPS = 40
SETTINGS = (
    f"rl.steps={STEPS}", "rl.groups_per_batch=2", "rl.group_size=4", "rl.checkpoint_every=5", "rl.window_seconds=0.05",
    "rollout.slots=8", "rollout.max_concurrency=8", "rollout.max_length=48", "rollout.max_tokens_per_turn=4",
    "rollout.heartbeat_seconds=0.3", "rollout.lease_seconds=3", "rollout.seal_seconds=0.5", "evaluation.workers=1",
    "environment.environment=slow:Slow", "environment.reward=slow:parity",
)  # fmt: skip
SLOW = """
import asyncio
from rollout.environments import ToolEnvironment

class Slow(ToolEnvironment):
    async def step(self, action):
        await asyncio.sleep(0.2)
        return await super().step(action)

def parity(task, messages):
    return float(len(messages[-1].content) % 2)
"""


@pytest.fixture
def driven(project: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """`headrace run` as a process of its own, with programs compiled as users have them."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    from prefect.settings import get_current_settings

    argv = [sys.executable, "-m", "headrace", *command(project, root)]
    env = {**os.environ, "PREFECT_API_URL": str(get_current_settings().api.url)}
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, text=True, env=env)
    yield process
    process.kill()
    process.communicate()


def command(project: Path, root: str) -> list[str]:
    (project / "slow.py").write_text(SLOW)
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    return ["run", str(project / "small.toml"), "--root", root, *settings]


def until_steps(root: str, more: int) -> None:
    """Wait until the ledger has so many more records than it has now."""
    store, end = open_store(root), time.monotonic() + 450

    def records() -> int:
        return len([key for key in store.list("runs/small/") if "/ledger/" in key])

    wanted = records() + more
    while records() < wanted:
        assert time.monotonic() < end, f"no {more} steps in that time"
        time.sleep(0.05)


def kill(process: subprocess.Popen[str], module: str) -> None:
    """kill -9 one child that runs a module."""
    children = psutil.Process(process.pid).children(recursive=True)
    next(c for c in children if module in c.cmdline()).kill()


def test_whatever_is_killed_the_run_goes_on_and_the_audit_is_ok(
    driven: subprocess.Popen[str], project: Path, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    until_steps(root, 3)
    kill(driven, "trainer.learner_process")
    until_steps(root, 3)
    kill(driven, "rollout.worker")
    until_steps(root, 6)
    driven.kill()
    driven.wait()
    capsys.readouterr()
    assert main(["audit", "verify", "small", "--root", root, "--json"]) == 0
    live = json.loads(capsys.readouterr().out)
    assert live["ok"] and 0 < live["dispositions"]["trained"] < STEPS * 2 * 4

    assert main(command(project, root)) == 0
    assert f"learner: step {STEPS}/{STEPS}" in capsys.readouterr().out
    assert main(["audit", "verify", "small", "--root", root, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] and found["unaccounted"] == found["trained_twice"] == found["pending"] == 0
    assert found["dispositions"]["trained"] == STEPS * 2 * 4 and found["max_staleness"] <= 2
