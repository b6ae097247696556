"""The flow of workers elsewhere, on a real Prefect server with stand-ins for the workers themselves."""

import importlib
import pickle
from pathlib import Path

import cloudpickle
import pytest

from flows.cli import main
from flows.worker_lines import WorkerLines
from schemas.errors import RequestError

ELSEWHERE = ["--set", "rollout.infrastructure=deployment"]


def test_a_run_without_a_deployment_for_its_workers_is_refused(
    project: Path, root: str, prefect_server: None, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", str(project / "small.toml"), "--root", root, *ELSEWHERE]
    assert main([*command, "--set", "rollout.deployment=rollout-worker/nowhere"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("headrace: Prefect has no deployment rollout-worker/nowhere (rollout.deployment)")
    assert said.count("\n") == 1
    assert main(["status", "small", "--root", root]) == 2, "nothing was written"


@pytest.mark.usefixtures("prefect_server", "fakes")
def test_a_flow_run_that_comes_too_late_has_nothing_to_do(project: Path, root: str) -> None:
    from flows.rollout_worker import rollout_worker

    assert main(["run", str(project / "small.toml"), "--root", root]) == 0
    assert rollout_worker(root, "small") == "the RL of run small has ended"


@pytest.mark.usefixtures("prefect_server")
def test_a_flow_run_without_a_run_fails_with_one_sentence(root: str) -> None:
    from flows.rollout_worker import rollout_worker

    state = rollout_worker(root, "small", return_state=True)
    assert state.is_failed() and str(state.message).startswith("there is no run `small`")


def test_the_deployment_is_found_by_its_module_and_named_as_configured() -> None:
    from flows.rollout_worker import deployment, rollout_worker

    made = deployment("pool", "rollout-worker/mine")
    assert (made.name, made.work_pool_name) == ("mine", "pool")
    module, _, name = made.entrypoint.rpartition(".")
    assert getattr(importlib.import_module(module), name) is rollout_worker
    with pytest.raises(RequestError, match="such as rollout-worker/headrace"):
        deployment("pool", "post-training/mine")


def test_the_flow_can_be_served() -> None:
    from flows.rollout_worker import rollout_worker

    assert pickle.loads(cloudpickle.dumps(rollout_worker)).name == "rollout-worker"


def test_lines_of_workers_come_now_and_then() -> None:
    now, said = 0.0, list[str]()
    lines = WorkerLines(said.append, lambda: now)
    event = {"event": "worker", "version": 3, "trajectories": 12.0, "in_flight": 4}
    for now in (0.0, 1.0, 11.0):  # noqa: B007
        lines("worker-0", event)
    lines("worker-0", {"event": "restart", "message": "it fell"})
    assert said == ["worker-0: policy 3  12 trajectories  4 in flight"] * 2 + ["worker-0: it fell"]
