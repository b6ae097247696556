"""A worker as its own process, on a folder store, with real weights: events out, SIGTERM in, exit code 0."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.probes import learner_probe
from support.protocol import NUMERICS
from support.rollouts import BASE, SHAPE, TASKS, TOKENIZER, config, put_tasks, put_window, sealed, workers

from models.pure import init_params
from models.stored import save_weights
from models.user_modules import environment_sha256
from schemas import keys
from schemas.manifest import PolicyManifest, RLSpec
from storage.objects import ObjectStore
from storage.open import open_store

WORLD = """
import rollout.environments

class Chatty(rollout.environments.ToolEnvironment):
    async def reset(self):
        print("{\\"event\\": \\"step\\"} what user code prints must not look like an event")
        return await super().reset()

    def step(self, action):
        return rollout.environments.StepResult(done=True)
"""


def lay_out(store: ObjectStore, folder: Path, engine: str) -> None:
    """A stage with policy 0 as a learner publishes it."""
    (folder / "scripts.py").write_text(
        "from rollout.scripted import *\n\ndef say(stream, seed, version):\n    return [63, 262]"
    )
    (folder / "world.py").write_text(WORLD)
    run = config(
        rollout={"engine": engine, "script": "scripts:say", "max_length": 32, "max_tokens_per_turn": 8, "slots": 4},
        environment={"environment": "world:Chatty"},
    )
    key, digest = put_tasks(store, TASKS)
    params = init_params(SHAPE, 0)
    weights = save_weights(store, keys.policy_weights(BASE, 0, "L"), SHAPE, params, TOKENIZER, "float32", "test")
    manifest = PolicyManifest(
        version=0, step=0, learner="L", weights=weights, dtype="float32", ledger_head="",
        probe=learner_probe(SHAPE, params), numerics=NUMERICS,
    )  # fmt: skip
    store.create(keys.policy_manifest(BASE, 0), manifest.to_bytes())
    spec = RLSpec(
        run="test", key="0123", config=run.model_dump(mode="json"), folder=str(folder), seed=7, initial=weights,
        tasks=key, tasks_sha256=digest, environment_sha256=environment_sha256(run, folder),
    )  # fmt: skip
    store.create(keys.spec(BASE), spec.to_bytes())


def start(root: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "rollout.worker", "--root", str(root), "--base", BASE, "--index", "1"]
    here = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(here)}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=root
    )


def until(condition: Callable[[], Any], process: subprocess.Popen[str], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            pytest.fail("\n".join(process.communicate()))
        time.sleep(0.05)


@pytest.mark.parametrize(("engine", "how"), [("scripted", "stop"), ("jax", "close")])
def test_a_worker_process(tmp_path: Path, engine: str, how: str) -> None:
    root = tmp_path / "root"
    store = open_store(str(root))
    lay_out(store, tmp_path, engine)
    put_window(store, 3)
    process = start(root)
    until(lambda: len(sealed(store)) == 6, process)
    if how == "stop":
        process.send_signal(signal.SIGTERM)
    else:
        put_window(store, 3, version=0, closed=True)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err.count("must not look like an event") >= 1) == (0, True), err
    events = [json.loads(line) for line in out.splitlines()]
    assert {e["event"] for e in events} == {"worker", "beat", "busy", "done"}
    assert {e["id"] for e in events if e["event"] == "busy"} == {e["id"] for e in events if e["event"] == "done"}
    assert {r.status for r in sealed(store)} <= {"succeeded", "max_tokens", "max_context"}
    assert (workers(store)[0].state, workers(store)[0].counters["trajectories"]) == ("left", 6)


def test_a_worker_without_a_stage_says_so(tmp_path: Path) -> None:
    process = start(tmp_path)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert json.loads(out.splitlines()[-1])["event"] == "error"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores are bound on Linux only")
def test_cores_are_given_out_in_turn_and_those_that_a_machine_lacks_are_left_out() -> None:
    core = min(os.sched_getaffinity(0))
    code = (
        "import os; from rollout.worker import bind\n"
        "before = os.sched_getaffinity(0); bind(((100000,),), 7); assert os.sched_getaffinity(0) == before\n"
        f"bind(((100000,), ({core}, 100000)), 41); assert os.sched_getaffinity(0) == {{{core}}}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
