"""Schedules: what a deployment holds, which requests are refused, and (slow) two real firings on a real server."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from flows.cli import main
from schemas import keys
from storage.open import open_store
from tasks.lease import hold
from tasks.record import read_run
from tasks.request import load


def test_the_flow_can_be_pickled_by_value() -> None:
    from flows.post_training import post_training

    cloudpickle.dumps(post_training)


def test_the_entrypoint_is_a_module(project: Path, root: str) -> None:
    from flows.schedule import _deployment

    deployment = _deployment(load(str(project / "small.toml"), root=root), "0 3 * * *")
    assert deployment.entrypoint == "flows.post_training.post_training"
    assert deployment.parameters["schedule"] == "small" and deployment.parameters["root"] == root
    assert str(deployment.concurrency_options.collision_strategy).endswith("CANCEL_NEW")


@pytest.mark.parametrize("command", ["serve", "deploy"])
def test_a_wrong_cron_line_is_refused(
    command: str, project: Path, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(project / "small.toml"), "--root", root, "--cron", "often"]) == 2
    assert "--cron `often` is not a cron line" in capsys.readouterr().err


def test_a_server_is_needed(
    project: Path, root: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert main(["serve", str(project / "small.toml"), "--root", root, "--cron", "0 3 * * *"]) == 2
    assert "serve needs a Prefect server" in capsys.readouterr().err


def test_a_server_that_does_not_answer_is_named(project: Path, root: str, capsys: pytest.CaptureFixture[str]) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        assert main(["serve", str(project / "small.toml"), "--root", root, "--cron", "0 3 * * *"]) == 2
    assert "no Prefect server answers at http://127.0.0.1:9/api" in capsys.readouterr().err


@pytest.mark.usefixtures("prefect_server")
def test_a_deployment_needs_its_work_pool(project: Path, root: str, capsys: pytest.CaptureFixture[str]) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    argv = ["deploy", str(project / "small.toml"), "--root", root, "--cron", "0 3 * * *", "--work-pool"]
    assert main([*argv, "missing"]) == 2
    assert "prefect work-pool create missing" in capsys.readouterr().err
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="here", type="process"))
        assert main([*argv, "here", "--set", "rollout.infrastructure=deployment"]) == 0
        made = client.read_deployment_by_name("post-training/small")
        workers = client.read_deployment_by_name("rollout-worker/headrace")
    assert workers.work_pool_name == "here" and workers.entrypoint == "flows.rollout_worker.rollout_worker"
    assert made.work_pool_name == "here" and made.entrypoint == "flows.post_training.post_training"
    assert made.parameters["config"]["name"] == "small"
    assert load(str(project / "small.toml"), root=root).store.list("data/")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real `prefect server` with a home of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    url = f"http://127.0.0.1:{port}/api"
    argv = [sys.executable, "-m", "prefect", "server", "start", "--no-ui", "--port", str(port)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0)
    monkeypatch.setenv("PREFECT_API_URL", url)
    until(lambda: ask(f"{url}/health") is not None, 240)
    yield url
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(30)


def until(done: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.5)


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())
    except OSError:
        return None


@pytest.mark.slow
@pytest.mark.usefixtures("fakes")
def test_two_firings_follow_each_other_and_an_overlapping_one_is_refused(server: str, project: Path, root: str) -> None:
    argv = [
        sys.executable,
        "-m",
        "headrace",
        "serve",
        str(project / "small.toml"),
        "--root",
        root,
        "--cron",
        "* * * * *",
    ]
    serving = subprocess.Popen(argv, process_group=0)
    store = open_store(root)

    def finished() -> list[str]:
        names = sorted({k.split("/")[1] for k in store.list("runs/")})
        return [n for n in names if (found := read_run(store, n)) and found.state == "finished"]

    try:
        until(lambda: len(finished()) >= 2, 400)
        first, second = finished()[:2]
        record = read_run(store, second)
        assert first.startswith("small-2") and record is not None and record.schedule == "small"
        assert [(p.kind, p.ref) for p in record.parents] == [("champion", f"{first}@3")]
        until(lambda: not any(read_run(store, n).state == "running" for n in finished()), 60)
        with hold(store, keys.schedule_lease("small"), "the test"):
            until(lambda: refused(server), 200)
    finally:
        os.killpg(serving.pid, signal.SIGTERM)
        serving.wait(60)


def refused(server: str) -> bool:
    runs = ask(f"{server}/flow_runs/filter", {"sort": "EXPECTED_START_TIME_DESC"}) or []
    return any("was refused: the schedule small" in str(r["state"]["message"]) for r in runs if r.get("state"))
