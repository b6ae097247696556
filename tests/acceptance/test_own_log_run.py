"""Two real runs: the second warms up on what the first one sampled, and audits of either lead to the other."""

import json
import shutil
from pathlib import Path

import pytest
from support import real_run

pytestmark = pytest.mark.slow


def test_a_second_run_learns_from_the_log_of_the_first(prefect_server: str, tmp_path: Path) -> None:
    project = real_run.lay_out(tmp_path, prefect_server)

    def headrace(command: str, *words: str, code: int = 0) -> str:
        done = project.headrace(command, *words)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    headrace("run", "--set", "rl.steps=3")
    settings = ("--set", "rl.steps=1", "--set", "warm_up.habit.steps=3", "--set", 'warm_up.habit.data={run="small"}')
    headrace("run", "--run", "second", *settings)
    assert all(json.loads(headrace("audit", "verify", run, "--json"))["ok"] for run in ("small", "second"))
    (warm_up,) = json.loads(headrace("audit", "checkpoint", "second", "--json"))["warm_ups"]
    assert (warm_up["taken"]["run"], warm_up["taken"]["end_step"]) == ("small", 3)
    taken = warm_up["taken"]["chosen"][0]["trajectory"]
    impact = json.loads(headrace("audit", "impact", "small", taken, "--json"))
    assert {warm_up["stage"], "second@1"} <= {a["ref"] for a in impact["artifacts"]}
    assert f"on {len(warm_up['taken']['chosen'])} trajectories of run small" in headrace(
        "audit", "checkpoint", "second"
    )

    shutil.rmtree(project.root / "runs" / "small")
    assert "names run `small`, which is not in" in headrace("run", "--run", "third", *settings, code=2)
    assert "nothing to do" in headrace("run", "--run", "second", *settings)
