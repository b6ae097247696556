"""Schedules: what a deployment holds, which requests are refused, and what a firing makes of what it finds."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from prefect.utilities.schema_tools import ValidationError, validate
from support.real_run import until

from flows.cli import main
from flows.schedule import When, _deployment, parameters
from schemas import keys
from schemas.config import Run
from schemas.manifest import Lease, RunManifest
from schemas.rl import RL
from storage.audit_runs import folders
from storage.open import open_store
from tasks import record
from tasks.lease import acquire, hold
from tasks.record import read_run
from tasks.request import keep_data, load

TEMPLATE = {
    "job_configuration": {"command": "{{ command }}", "env": "{{ env }}"},
    "variables": {"properties": {"env": {"type": "object"}, "command": {"type": "string"}, "ttl": {"type": "integer"}}},
}


def test_the_flow_can_be_pickled_by_value() -> None:
    from flows.post_training import post_training

    cloudpickle.dumps(post_training)


def test_the_entrypoint_is_a_module(project: Path, root: str) -> None:
    deployment = _deployment(load(str(project / "small.toml"), root=root), When("0 3 * * *", "Europe/Berlin"))
    assert deployment.entrypoint == "flows.post_training.post_training"
    assert deployment.parameters["schedule"] == "small" and deployment.parameters["root"] == root
    assert deployment.concurrency_limit is None, "only the store refuses an overlap"
    (fires,) = deployment.schedules
    assert (fires.schedule.cron, fires.schedule.timezone) == ("0 3 * * *", "Europe/Berlin")


def test_without_a_cron_line_it_fires_only_when_asked(project: Path, root: str) -> None:
    assert _deployment(load(str(project / "small.toml"), root=root), When()).schedules == []


def test_the_configuration_is_a_form_that_its_own_values_fill(project: Path, root: str) -> None:
    deployment = _deployment(load(str(project / "small.toml"), root=root), When())
    form = deployment._parameter_openapi_schema.model_dump_for_openapi()
    assert form["properties"]["config"]["$ref"] == "#/definitions/Run"
    assert set(form["definitions"]["Run"]["properties"]) == set(Run.model_fields)
    assert form["definitions"]["RL"]["properties"]["steps"]["description"] == RL.model_fields["steps"].description
    assert deployment.enforce_parameter_schema
    validate(deployment.parameters, form, raise_on_error=True, preprocess=True)
    deployment.parameters["config"]["rl"]["steps"] = 0
    with pytest.raises(ValidationError, match=r"config\.rl\.steps"):
        validate(deployment.parameters, form, raise_on_error=True, preprocess=True)


@pytest.mark.parametrize("command", ["serve", "deploy"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cron", "often"], "--cron `often` is not a cron line (such as '0 3 * * *' for every night at three)"),
        (["--cron", "0 3 * * *", "--timezone", "Mars/Base"], "--timezone `Mars/Base` is no time zone"),
        (["--timezone", "UTC"], "--timezone says in which zone --cron is read: give --cron too"),
        (["--evaluate", "often"], "--evaluate `often` is not a cron line"),
        (["--evaluate", "* * * * *"], "--evaluate says when evaluators of a deployment look for what is due"),
        (
            ["--set", "rollout.infrastructure=deployment", "--set", "rollout.deployment=x/y"],
            "rollout.deployment = x/y is of",
        ),
    ],
)
def test_wrong_times_are_refused(
    command: str, words: list[str], said: str, project: Path, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(project / "small.toml"), "--root", root, *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"headrace: {said}") and error.count("\n") == 1


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

    argv = ["deploy", str(project / "small.toml"), "--root", root, "--work-pool"]
    assert main([*argv, "missing"]) == 2
    said = capsys.readouterr().err
    assert "no work pool `missing`: create it with `prefect work-pool create missing --type process`" in said
    assert said.count("\n") == 1
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="here", type="process", base_job_template=TEMPLATE))
        assert main([*argv, "here", "--job-variable", "image=x"]) == 2
        assert "jobs of the work pool `here` (process) have no such variable" in capsys.readouterr().err
        assert main([*argv, "here", "--job-variable", "image"]) == 2
        assert "is not of the form KEY=VALUE" in capsys.readouterr().err
        assert main([*argv, "here", "--job-variable", "env=x"]) == 2
        assert "is not of the form KEY=VALUE or env.NAME=VALUE" in capsys.readouterr().err
        assert main([*argv, "here", "--job-variable", "ttl=soon"]) == 2
        assert "soon" in capsys.readouterr().err
        words = ["--set", "rollout.infrastructure=deployment", "--cron", "0 3 * * *"]
        assert main([*argv, "here", *words, "--job-variable", "env.PLACE=there", "--job-variable", "ttl=60"]) == 0
        assert "deployed post-training/small: it fires at `0 3 * * *` (UTC)" in capsys.readouterr().out
        made = client.read_deployment_by_name("post-training/small")
        workers = client.read_deployment_by_name("rollout-worker/headrace")
        assert workers.work_pool_name == "here" and workers.entrypoint == "flows.rollout_worker.rollout_worker"
        assert made.work_pool_name == "here" and made.entrypoint == "flows.post_training.post_training"
        assert made.parameters["config"]["name"] == "small" and len(made.schedules) == 1
        assert made.job_variables == {"env": {"PYTHONSAFEPATH": "1", "PLACE": "there"}, "ttl": 60}
        assert main([*argv, "here"]) == 0
        assert client.read_deployment_by_name("post-training/small").schedules == [], "deployed anew without a cron"
    assert load(str(project / "small.toml"), root=root).store.list("data/")


@pytest.mark.usefixtures("prefect_server")
def test_a_wrong_configuration_fails_its_firing_with_one_sentence(project: Path, root: str) -> None:
    from flows.post_training import post_training

    given = parameters(load(str(project / "small.toml"), root=root))
    given["config"]["rl"]["publish_every"] = 9
    state = post_training(**given, return_state=True)
    assert state.is_failed()
    assert str(state.message).startswith("the deployment's configuration: `rl`: publish_every = 9 makes samples older")
    assert not open_store(root).list("runs/")


@pytest.mark.usefixtures("prefect_server", "fakes")
def test_a_firing_follows_the_champion_and_names_its_flow_run(project: Path, root: str) -> None:
    first, second = fire(project, root), fire(project, root)
    assert first.is_completed() and second.is_completed()
    old, new = runs_of(root)
    assert new.parents[0].ref == f"{old.run}@3" and new.schedule == old.schedule == "small"
    assert [len(m.flow_runs) for m in (old, new)] == [1, 1] and old.flow_runs != new.flow_runs


@pytest.mark.usefixtures("prefect_server", "fakes")
def test_a_firing_is_refused_while_another_holds_the_schedule(project: Path, root: str) -> None:
    with hold(open_store(root), keys.schedule_lease("small"), "the test"):
        state = fire(project, root)
    assert state.is_cancelled() and "the schedule small is being driven by process" in str(state.message)
    assert not runs_of(root)


@pytest.mark.usefixtures("prefect_server", "fakes")
def test_a_dead_run_is_finished_first_and_one_that_was_stopped_is_left(project: Path, root: str) -> None:
    dead, stopped = leave(project, root, "small-0", "running"), leave(project, root, "small-1", "stopped")
    other = leave(project, root, "small-other-2", "running", schedule="small-other")
    assert fire(project, root).is_completed()
    found = {m.run: m for m in runs_of(root)}
    assert (found[dead].state, found[dead].takeovers, len(found[dead].flow_runs)) == ("finished", 1, 1)
    assert (found[stopped].state, found[stopped].takeovers) == ("stopped", 0)
    assert (found[other].state, found[other].takeovers) == ("running", 0), "another schedule's"
    (own,) = set(found) - {dead, stopped, other}
    assert found[own].parents[0].ref == f"{dead}@3"


@pytest.mark.usefixtures("prefect_server", "fakes")
def test_a_run_is_taken_over_three_times_at_most(project: Path, root: str) -> None:
    store = open_store(root)
    dead = [leave(project, root, f"small-{n}", "running", takeovers=3) for n in range(2)]
    config = runs_of(root)[1].config
    record.change(store, dead[1], config=config | {"model": config["model"] | {"path": "champion"}})
    assert fire(project, root).is_completed()
    given_up = [m for m in runs_of(root) if m.run in dead]
    assert [m.state for m in given_up] == ["failed", "failed"] and "its driver died" in given_up[0].reason
    assert given_up[0].reason.endswith("`headrace run CONFIG --run small-0` tries again")
    assert given_up[1].reason.endswith("--run small-1 --set model.path=champion` tries again"), "whatever CONFIG has"


@pytest.mark.usefixtures("prefect_server", "fakes")
def test_a_firing_that_was_stopped_is_gone_on_with_by_hand(project: Path, root: str) -> None:
    fire(project, root)
    fire(project, root)
    champion, stopped = runs_of(root)
    record.change(open_store(root), stopped.run, state="stopped")
    again = ["run", str(project / "small.toml"), "--root", root, "--run", stopped.run, "--set", "model.path=champion"]
    assert main([*again, "--set", "rl.steps=4"]) == 0
    (gone_on,) = [m for m in runs_of(root) if m.run == stopped.run]
    assert (gone_on.initial, gone_on.rl_keys) == (stopped.initial, stopped.rl_keys), "the same weights, the same stage"
    assert gone_on.parents[0].ref == f"{champion.run}@3" and gone_on.schedule == "small"
    assert gone_on.state == "finished"


@pytest.mark.usefixtures("prefect_server", "fakes")
def test_a_dead_run_that_cannot_be_finished_does_not_hold_up_the_schedule(
    project: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = leave(project, root, "small-0", "running")
    store = open_store(root)
    for key in store.list("data/"):
        store.delete(key)
    assert fire(project, root).is_completed()
    assert len([m for m in runs_of(root) if m.state == "finished"]) == 1
    left = read_run(store, dead)
    assert left is not None and left.takeovers == 1


@pytest.mark.usefixtures("prefect_server", "fakes")
def test_a_run_that_somebody_drives_is_not_dead(project: Path, root: str) -> None:
    alive = leave(project, root, "small-0", "running")
    with hold(open_store(root), keys.run_lease(alive), "the test"):
        assert fire(project, root).is_completed()
    left = read_run(open_store(root), alive)
    assert left is not None and (left.state, left.takeovers) == ("running", 0)


@pytest.mark.usefixtures("prefect_server", "fakes")
def test_a_firing_that_loses_its_schedule_while_it_takes_over_opens_no_run(
    project: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, store = leave(project, root, "small-0", "running"), open_store(root)
    monkeypatch.setitem(acquire.__kwdefaults__, "seconds", 1.0)
    monkeypatch.setenv("FAKE_STEP_SECONDS", "10")

    def take_the_schedule() -> None:
        until(
            lambda: any(key.endswith("/window.json") for key in store.list(f"runs/{dead}/")), "its learner is at work"
        )
        other = Lease(owner="other", host="elsewhere", pid=1, seconds=1.0, beat=0)
        store.put(keys.schedule_lease("small"), other.to_bytes())

    with ThreadPoolExecutor(1) as executor:
        taking = executor.submit(take_the_schedule)
        state = fire(project, root)
        taking.result()
    assert state.is_failed() and "another firing of the schedule has taken over" in str(state.message)
    assert [m.run for m in runs_of(root)] == [dead]


@pytest.mark.usefixtures("prefect_server", "fakes")
def test_a_firing_that_loses_its_schedule_before_it_drives_trains_nothing(
    project: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, key = open_store(root), keys.schedule_lease("small")
    monkeypatch.setitem(acquire.__kwdefaults__, "seconds", 1.0)

    def lose_the_schedule(_: Any) -> None:
        store.put(key, Lease(owner="other", host="elsewhere", pid=1, seconds=1.0, beat=0).to_bytes())
        until(lambda: not any(t.name == f"lease {key}" for t in threading.enumerate()), "the loss is noticed")

    monkeypatch.setattr("flows.firing.worker_pool.check", lose_the_schedule)
    state = fire(project, root)
    assert state.is_failed() and "another firing of the schedule has taken over" in str(state.message)
    assert not [stored for stored in store.list("runs/") if "/rl-" in stored] and not store.list("stages/")


def fire(project: Path, root: str) -> Any:
    """A firing in this process; its final state."""
    from flows.post_training import post_training

    return post_training(**parameters(load(str(project / "small.toml"), root=root)), return_state=True)


def leave(project: Path, root: str, run: str, state: str, *, schedule: str = "small", takeovers: int = 0) -> str:
    """A run of a schedule whose driver is gone."""
    request = load(str(project / "small.toml"), root=root, run=run)
    keep_data(request)
    update = {"state": state, "takeovers": takeovers}
    record.save(request.store, record.prepare(request, schedule=schedule).model_copy(update=update))
    return run


def runs_of(root: str) -> list[RunManifest]:
    """The runs in the store, oldest first."""
    store = open_store(root)
    found = [read_run(store, name) for name in folders(store, "runs/")]
    return sorted((m for m in found if m is not None), key=lambda m: m.created)
