"""kill -9 of the learner, of a worker and of the whole flow in the middle of RL: nothing is lost, nothing is left."""

import json

import pytest
from support.real_run import ROWS, STEPS
from support.recount import recount

pytestmark = pytest.mark.slow


def test_a_killed_learner_and_a_killed_worker_are_started_again(killed) -> None:
    assert "learner was killed by SIGKILL; starting it again" in killed.first, killed.first
    assert "worker-0 was killed by SIGKILL; starting it again" in killed.first.replace("worker-1", "worker-0")
    assert killed.first.count("ledger records replayed") == 2


def test_a_killed_flow_leaves_no_process_behind(killed) -> None:
    assert killed.orphans == []
    assert killed.status["state"] == "interrupted" and 0 < killed.status["rl"]["step"] < STEPS


def test_the_interrupted_run_is_sound(killed) -> None:
    counted = dict(killed.counted)
    trained = counted.pop("trained")
    assert killed.live["ok"] and 0 < len(trained) == killed.live["dispositions"]["trained"] < STEPS * ROWS
    assert counted == {name: killed.live[name] for name in counted}


def test_the_next_run_goes_on_and_the_audit_is_ok(killed) -> None:
    said = killed.second.stdout
    assert killed.second.returncode == 0, said + killed.second.stderr
    assert "habit: finished before" in said and f"learner: step {STEPS}/{STEPS}" in said
    assert "(checkpoint " in said and f"learner: step 1/{STEPS}" not in said
    found = killed.project.headrace("audit", "verify", "small", "--json")
    verified, counted = json.loads(found.stdout), recount(killed.project.root, "small")
    trained = counted.pop("trained")
    assert found.returncode == 0 and verified["ok"] and counted == {name: verified[name] for name in counted}
    assert verified["unaccounted"] == verified["trained_twice"] == verified["pending"] == 0
    assert len(trained) == verified["dispositions"]["trained"] == STEPS * ROWS
    listed = json.loads(killed.project.headrace("audit", "checkpoint", "small", "--json").stdout)["trajectories"]
    assert [[t["step"], t["position"], t["trajectory"]] for t in listed] == trained
