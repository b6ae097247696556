"""Evaluation beside training in the flow, and the flow of evaluators, on a real Prefect server with stand-ins."""

import importlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from support.begun import EVERY, begun, commit

from flows.cli import main
from schemas.errors import RequestError
from storage.open import open_store
from tasks.status import reports

STEPS = ("rl.steps=3", "rl.checkpoint_every=1", "evaluation.every=1")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(project: Path, root: str, capsys: pytest.CaptureFixture[str], prefect_server: None, fakes: None) -> Run:
    """`headrace run` with settings; returns exit code, standard output, standard error."""

    def start(*settings: str) -> tuple[int, str, str]:
        words = [word for setting in settings for word in ("--set", setting)]
        code = main(["run", str(project / "small.toml"), "--root", root, *words])
        found = capsys.readouterr()
        return code, found.out, found.err

    return start


def by_step(root: str) -> dict[str, str]:
    """Checkpoint → how its report on the held-out tasks is called."""
    found = [r for r in reports(open_store(root), "small") if r.setting == "evaluation.tasks"]
    return {r.checkpoint.partition("/")[0]: r.name for r in found}


def test_a_run_reports_its_checkpoints(run: Run, root: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(*STEPS)
    assert code == 0, out + err
    assert by_step(root).keys() == {"stages", "small@1", "small@2", "small@3"}
    table = out[out.index("run small: small@3") :].splitlines()
    assert [line.split("  ")[1] for line in table[1:5]] == ["warm-up", "step 1", "step 2", "promoted"]
    assert "run small is finished: nothing to do" in run(*STEPS)[1]
    assert main(["status", "small", "--root", root]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines() if "evaluation.tasks" in line]
    assert [words[-2] for words in shown][1:] == ["small@1", "small@2", "small@3"]


def test_a_failure_beside_training_does_not_end_it_but_the_report_has_to_be_whole(
    run: Run, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_EVALUATION_FAILS", "small@1")
    monkeypatch.setenv("FAKE_STEP_SECONDS", "2")
    code, out, err = run(*STEPS)
    assert code == 1 and err == "headrace: no episode of small@1 ends\n"
    assert "no episode of small@1 ends; training goes on" in out and "learner: step 3/3" in out
    monkeypatch.delenv("FAKE_EVALUATION_FAILS")
    code, out, _ = run(*STEPS)
    assert code == 0 and "rl: finished before" in out and by_step(root).keys() >= {"small@1", "small@2"}


@pytest.mark.usefixtures("prefect_server", "fakes")
def test_a_flow_run_makes_what_is_due_of_one_run_or_of_all(project: Path, root: str) -> None:
    from flows.evaluating import evaluate_run

    for name in ("one", "two"):
        commit(begun(project, root, *EVERY, run=name), 4)
    assert evaluate_run(root, "one") == "2 made"
    assert evaluate_run(root) == "2 made"
    assert evaluate_run(root) == "nothing is due"


@pytest.mark.usefixtures("prefect_server", "fakes")
def test_a_flow_run_that_can_not_do_its_work_fails_with_one_sentence(
    project: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.evaluating import evaluate_run

    state: Any = evaluate_run(root, "missing", return_state=True)
    assert state.is_failed() and str(state.message).startswith("there is no run `missing`")
    commit(begun(project, root, *EVERY), 4)
    monkeypatch.setenv("FAKE_EVALUATION_FAILS", "small@4")
    state = evaluate_run(root, return_state=True)
    assert state.is_failed() and str(state.message) == "no episode of small@4 ends"


def test_the_deployment_is_found_by_its_module_and_fired_by_its_runs() -> None:
    from flows.evaluating import deployment, evaluate_run

    made = deployment("pool", "gs://bucket/x", "evaluate-run/mine")
    assert (made.name, made.work_pool_name, made.parameters) == ("mine", "pool", {"root": "gs://bucket/x"})
    module, _, name = made.entrypoint.rpartition(".")
    assert getattr(importlib.import_module(module), name) is evaluate_run
    (trigger,) = made.triggers
    assert trigger.expect == {"headrace.checkpoint.committed"}
    assert trigger.match.root["headrace.deployment"] == "evaluate-run/mine"
    assert pickle.loads(cloudpickle.dumps(evaluate_run)).name == "evaluate-run"
    with pytest.raises(RequestError, match="such as evaluate-run/headrace"):
        deployment("pool", "x", "post-training/mine")


def test_a_run_without_a_deployment_for_its_evaluators_is_refused(run: Run, root: str) -> None:
    code, _, err = run(*STEPS, "evaluation.infrastructure=deployment", "evaluation.deployment=evaluate-run/nowhere")
    assert code == 2 and err.count("\n") == 1
    assert err.startswith("headrace: Prefect has no deployment evaluate-run/nowhere (evaluation.deployment)")
    assert not open_store(root).list("runs/"), "nothing was written"
