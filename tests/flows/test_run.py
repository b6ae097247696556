"""The whole command with stand-ins for the processes that need models: what it does, skips, prints and returns."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from flows.cli import main
from schemas.manifest import RunManifest
from schemas.promotion import Channel
from storage.open import open_store
from tasks import reinforce
from tasks.record import read_run
from tasks.request import load
from tasks.survey import survey

pytestmark = pytest.mark.usefixtures("prefect_server", "fakes")
Headrace = Callable[..., tuple[int, str, str]]


@pytest.fixture
def headrace(project: Path, root: str, capsys: pytest.CaptureFixture[str]) -> Headrace:
    """Run a command on the small project; returns exit code, standard output, standard error."""

    def run(*argv: str) -> tuple[int, str, str]:
        words = [str(project / "small.toml") if w == "CONFIG" else w for w in argv]
        code = main([*words, "--root", root])
        out = capsys.readouterr()
        return code, out.out, out.err

    return run


def test_from_nothing_to_a_champion_and_never_again(headrace: Headrace, root: str, project: Path) -> None:
    both = ("--set", "evaluation.temperatures=[1.0, 0.0]")
    code, out, err = headrace("run", "CONFIG", *both)
    assert code == 0, out + err
    assert "learner: step 3/3" in out and "promoted:" in out and "temperature 1" in out and "greedy" in out
    shown = out[out.index("run small: small@3") :]
    assert shown.count("success  50.0%") == 2 and shown.count("success 100.0%") == 2

    code, out, err = headrace("run", "CONFIG", *both)
    assert code == 0 and "run small is finished: nothing to do" in out and "success 100.0%" in out

    code, out, err = headrace("status", "small", "--json")
    status = json.loads(out)
    assert status["state"] == "finished" and status["champion"]["ref"] == "small@3"
    assert [s["state"] for s in status["stages"]] == ["finished", "finished"]
    assert status["rl"]["trainer_idle_ratio"] == 0.25 and status["rl"]["rollouter_idle_ratio"] == 0.25
    assert {e["checkpoint"] for e in status["evaluations"]} == {"small@3", status_stage(status)}

    code, out, err = headrace("run", "CONFIG", "--set", "rl.group_size=4")
    assert code == 0 and "habit: finished before" in out and "learner: step 3/3" in out
    assert "not promoted" in out  # the new candidate is as good as the champion
    record = read_run(open_store(root), "small")
    assert record is not None and len(record.rl_keys) == 2

    assert headrace("promote", "small@3")[0] == 1
    code, out, err = headrace("eval", "small")
    assert code == 0 and out.count("small@3 T=1: success 100.0%") == 1


def status_stage(status: dict) -> str:
    return f"stages/habit-{status['stages'][0]['key']}"


def test_more_steps_continue_the_same_stage(headrace: Headrace, root: str) -> None:
    assert headrace("run", "CONFIG")[0] == 0
    code, out, _ = headrace("run", "CONFIG", "--set", "rl.steps=5")
    assert code == 0 and "step 5/5" in out and "small@5" in out
    record = read_run(open_store(root), "small")
    assert record is not None and len(record.rl_keys) == 1


def test_a_refused_gate_is_a_finished_run(headrace: Headrace, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CANDIDATE", "bad")
    code, out, err = headrace("run", "CONFIG")
    assert code == 0 and "not promoted: small@3 (0.0%) does not beat the warm-up" in out
    assert open_store(root).list("registry/") == ["registry/small/candidate.json"]
    code, _, err = headrace("promote", "small")
    assert code == 1 and err.startswith("headrace: not promoted")


def test_a_learner_that_stops_stops_the_run_with_its_cause(
    headrace: Headrace, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LEARNER", "fails")
    code, out, err = headrace("run", "CONFIG")
    assert code == 1 and err.strip() == "headrace: the loss is not a number at step 0"
    record = read_run(open_store(root), "small")
    assert record is not None and record.state == "failed" and "not a number" in record.reason

    monkeypatch.delenv("FAKE_LEARNER")
    code, out, err = headrace("run", "CONFIG")
    assert code == 0 and "habit: finished before" in out


def test_a_bug_in_a_roll_out_ends_the_learner_at_once(
    headrace: Headrace, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> str:
        raise ValueError("a bug")

    monkeypatch.setenv("FAKE_STEP_SECONDS", "15")
    monkeypatch.setattr(reinforce, "roll_out", broken)
    with pytest.raises(ValueError, match="a bug"):
        headrace("run", "CONFIG")
    left = read_run(open_store(root), "small")
    assert left is not None and (left.state, left.reason) == ("failed", "a bug")
    assert not [key for key in open_store(root).list("runs/small/") if "/ledger/" in key], "nobody waited for its end"


def test_workers_that_all_crash_at_their_start_end_the_run_with_the_cause(
    headrace: Headrace, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "raises")
    monkeypatch.setenv("FAKE_STEP_SECONDS", "600")
    code, out, err = headrace("run", "CONFIG")
    assert code == 1 and err.startswith("headrace: worker-") and "failed (2 times): ValueError: a bug of process" in err
    assert 1 <= out.count("starting it again") <= 2, "each worker was tried twice at most"
    left = read_run(open_store(root), "small")
    assert left is not None and left.state == "failed" and "a bug of process" in left.reason
    assert not [key for key in open_store(root).list("runs/small/") if "/ledger/" in key], "the learner did not wait"


def test_a_killed_learner_is_started_again(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_LEARNER", "dies")
    code, out, _ = headrace("run", "CONFIG")
    assert code == 0 and "learner was killed by SIGKILL; starting it again" in out


def test_the_next_run_of_a_model_starts_from_its_champion(headrace: Headrace, root: str, project: Path) -> None:
    assert headrace("run", "CONFIG")[0] == 0
    code, out, err = headrace("run", "CONFIG", "--run", "second", "--set", "model.path=champion")
    assert code == 0, err
    store = open_store(root)
    record = RunManifest.from_bytes(store.get("runs/second/run.json").data, "run")
    assert [(p.kind, p.ref) for p in record.parents] == [("champion", "small@3")]
    assert "habit" not in record.stages and "not promoted" in out
    request = load(str(project / "small.toml"), ["model.path=champion"], root=root, run="second")
    assert survey(request, record).finished
    channel = Channel.from_bytes(store.get("registry/small/production.json").data, "channel")
    assert len(channel.history) == 1


@pytest.fixture
def driver(
    project: Path, root: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `headrace run` as a process of its own and returns once its learner makes steps."""
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.2")
    started: list[subprocess.Popen[str]] = []

    def start(**environment: str) -> subprocess.Popen[str]:
        argv = [
            sys.executable,
            "-m",
            "headrace",
            "run",
            str(project / "small.toml"),
            "--root",
            root,
            "--set",
            "rl.steps=500",
        ]
        pipe, env = subprocess.PIPE, {**os.environ, **environment}
        started.append(subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env=env))
        assert started[-1].stdout is not None
        assert any("learner: step" in line for line in started[-1].stdout)
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_kill_minus_nine_leaves_no_orphans_and_the_next_run_goes_on(
    headrace: Headrace,
    driver: Callable[..., subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    first = driver(PREFECT_API_URL="", PREFECT_HOME=str(tmp_path_factory.mktemp("prefect")))
    children = psutil.Process(first.pid).children(recursive=True)
    assert len(children) == 4  # two workers, the learner, and a Prefect server since none was set up
    code, _, err = headrace("run", "CONFIG")
    assert code == 2 and "run small is being driven by process" in err
    assert json.loads(headrace("status", "small", "--json")[1])["state"] == "running"
    first.kill()
    first.wait()
    deadline = time.monotonic() + 20
    while alive(children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(children)
    assert json.loads(headrace("status", "small", "--json")[1])["state"] == "interrupted"
    monkeypatch.delenv("FAKE_STEP_SECONDS")
    assert headrace("run", "CONFIG")[0] == 0


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_says_so(
    root: str, driver: Callable[..., subprocess.Popen[str]], how: signal.Signals
) -> None:
    from prefect.settings import get_current_settings

    process = driver(PREFECT_API_URL=str(get_current_settings().api.url))
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and err.startswith("headrace: stopped")
    assert not alive(children)
    record = read_run(open_store(root), "small")
    assert record is not None and record.state == "stopped"
