"""The same command again does nothing, quickly; one changed RL setting redoes RL and what follows, not the warm-up."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.recount import recount

pytestmark = pytest.mark.slow


def stamps(root: Path) -> dict[str, int]:
    """When each object of the store was written."""
    return {str(p): p.stat().st_mtime_ns for p in root.rglob("*") if p.is_file() and ".tmp" not in p.parts}


def loaded(import_times: str) -> set[str]:
    """Top-level packages that a process imported, from Python's own record on standard error."""
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in import_times.splitlines() if "|" in line}


def test_the_same_command_skips_every_stage(killed) -> None:
    before = stamps(killed.project.root)
    again = killed.project.headrace("run", PYTHONPROFILEIMPORTTIME="1")
    assert again.returncode == 0 and "run small is finished: nothing to do" in again.stdout
    assert "flows" in loaded(again.stderr) and not loaded(again.stderr) & {"prefect", "jax", "flax", "optax"}
    assert stamps(killed.project.root) == before


def test_a_changed_rl_setting_redoes_rl_and_what_follows(killed, tmp_path: Path) -> None:
    project = replace(killed.project, root=shutil.copytree(killed.project.root, tmp_path / "root"))
    before = json.loads(project.headrace("status", "small", "--json").stdout)
    settings = ("--set", "rl.steps=2", "--set", "rl.loss.clip_high=0.3")
    changed = project.headrace("run", *settings)
    assert changed.returncode == 0, changed.stdout + changed.stderr
    assert "habit: finished before" in changed.stdout and "learner: step 2/2" in changed.stdout
    after = json.loads(project.headrace("status", "small", "--json").stdout)
    old, new = ({s["name"]: s["key"] for s in found["stages"]} for found in (before, after))
    assert old["habit"] == new["habit"] and old["rl"] != new["rl"]
    assert {e["checkpoint"] for e in after["evaluations"]} > {e["checkpoint"] for e in before["evaluations"]}
    verified = json.loads(project.headrace("audit", "verify", "small", "--json").stdout)
    counted = recount(project.root, "small")
    assert verified["ok"] and len(verified["stages"]) == 2
    assert verified["dispositions"]["trained"] == len(counted["trained"])
