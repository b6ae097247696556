"""`prefect.yaml`: every entrypoint is a flow, every flow is deployed, and every job variable is known to its pool."""

import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import prefect.server
import pytest
import yaml
from prefect import Flow

import flows

HERE = Path(__file__).parents[2]
WRITTEN = yaml.safe_load((HERE / "prefect.yaml").read_text())
DEPLOYMENTS: list[dict[str, Any]] = WRITTEN["deployments"]
TYPES = {"headrace": ("prefect", "process"), "headrace-kubernetes": ("prefect-kubernetes", "kubernetes")}


def load(entrypoint: str) -> object:
    module, _, name = entrypoint.rpartition(".")
    return getattr(importlib.import_module(module), name)


def template(pool: str) -> dict[str, Any]:
    """The base job template that Prefect's server gives to a new pool of this type."""
    views = Path(prefect.server.__path__[0]) / "api" / "collections_data" / "views"
    package, kind = TYPES[pool]
    found = json.loads((views / "aggregate-worker-metadata.json").read_text())
    return found[package][kind]["default_base_job_configuration"]


def test_every_entrypoint_is_a_flow_and_nothing_is_pulled() -> None:
    assert WRITTEN["pull"] == [], "a module is imported, no folder is fetched"
    assert all(isinstance(load(d["entrypoint"]), Flow) for d in DEPLOYMENTS)
    names = [(d["entrypoint"], d["name"]) for d in DEPLOYMENTS]
    assert len(set(names)) == len(names)


def test_every_flow_is_deployed_on_every_pool() -> None:
    modules = [importlib.import_module(f"flows.{found.name}") for found in pkgutil.iter_modules(flows.__path__)]
    ours = {f"{m.__name__}.{n}" for m in modules for n, o in vars(m).items() if isinstance(o, Flow)}
    defined = {name for name in ours if load(name).fn.__module__ == name.rpartition(".")[0]}
    pools = {(d["entrypoint"], d["work_pool"]["name"]) for d in DEPLOYMENTS}
    assert pools == {(name, pool) for name in defined for pool in TYPES}


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: f"{d['entrypoint']}-{d['name']}")
def test_job_variables_are_those_of_the_pool(deployment: dict[str, Any]) -> None:
    pool, variables = deployment["work_pool"]["name"], deployment["work_pool"]["job_variables"]
    assert set(variables) <= set(template(pool)["variables"]["properties"])
    assert variables["env"]["PYTHONSAFEPATH"] == "1"
    if pool == "headrace-kubernetes":
        assert {"image", "cpu_request", "memory_request", "memory_limit"} <= set(variables)


def test_evaluators_are_fired_by_the_events_of_the_runs_that_name_them() -> None:
    from prefect.events import DeploymentEventTrigger

    from flows.evaluating import trigger

    evaluators = [d for d in DEPLOYMENTS if d["entrypoint"] == "flows.evaluating.evaluate_run"]
    assert len(evaluators) == len(TYPES)
    for deployment in evaluators:
        (written,) = [DeploymentEventTrigger.model_validate(t) for t in deployment["triggers"]]
        ours = trigger(f"evaluate-run/{deployment['name']}")
        assert (written.expect, written.match, written.parameters) == (ours.expect, ours.match, ours.parameters)


def test_jobs_on_kubernetes_bring_their_command_to_an_image_without_an_entrypoint() -> None:
    manifest = template("headrace-kubernetes")["job_configuration"]["job_manifest"]
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert container["args"] == "{{ command }}" and "command" not in container
    job = (HERE / "Dockerfile").read_text().partition("AS job")[2].partition("\nFROM ")[0]
    assert "ENTRYPOINT" not in job
