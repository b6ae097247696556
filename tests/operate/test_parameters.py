"""Firings with parameters of their own, and deployments that `prefect deploy` makes of `prefect.yaml`."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.exceptions import PrefectHTTPStatusError
from support.prefect_site import PREFECT, TREE, Machine, Site
from support.scheduled import Scheduled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_wrong_parameters_are_refused_or_fail_once_with_one_sentence(scheduled: Scheduled) -> None:
    scheduled.deploy()
    scheduled.worker()
    with scheduled.site.client() as client:
        given = client.read_deployment_by_name(scheduled.deployment).parameters
    config = given["config"]
    with pytest.raises(PrefectHTTPStatusError, match=r"config\.rl\.steps"):
        scheduled.fire(config=config | {"rl": config["rl"] | {"steps": -1}})
    flow = scheduled.fire(config=config | {"rl": config["rl"] | {"publish_every": 9}})
    scheduled.timed("the firing has failed", lambda: scheduled.site.state(flow) == "FAILED")
    (found,) = scheduled.site.runs(scheduled.deployment)
    assert found.run_count == 1 and found.state is not None
    assert str(found.state.message).startswith("the deployment's configuration: `rl`: publish_every = 9 makes")
    assert not scheduled.runs()
    right = scheduled.fire(config=config | {"rl": config["rl"] | {"steps": 5}})
    scheduled.timed("a firing with other steps ends", lambda: scheduled.site.state(right) == "COMPLETED")
    (run,) = scheduled.runs().values()
    assert run.config["rl"]["steps"] == 5


@pytest.fixture
def checkout(site: Site, tmp_path: Path) -> Iterator[Machine]:
    root = {"HEADRACE_ROOT": str(tmp_path / "root"), "HEADRACE_IMAGE": "headrace-job:1"}
    machine = Machine(tmp_path, {"PREFECT_API_URL": site.api, "PREFECT_HOME": str(tmp_path / "prefect")} | root)
    yield machine
    machine.stop()


def test_prefect_deploys_what_prefect_yaml_says(site: Site, checkout: Machine) -> None:
    for pool, kind in (("headrace", "process"), ("headrace-kubernetes", "kubernetes")):
        made = checkout.call(PREFECT, "work-pool", "create", pool, "--type", kind, "--overwrite")
        assert made.returncode == 0, made.stdout + made.stderr
    os.symlink(TREE / "prefect.yaml", checkout.folder / "prefect.yaml")
    made = checkout.call(PREFECT, "--no-prompt", "deploy", "--all")
    assert made.returncode == 0, made.stdout + made.stderr
    with site.client() as client:
        learner = client.read_deployment_by_name("post-training/kubernetes")
        worker = client.read_deployment_by_name("rollout-worker/headrace")
    assert learner.entrypoint == "flows.post_training.post_training" and not learner.pull_steps
    assert learner.job_variables["image"] == "headrace-job:1" and learner.job_variables["cpu_request"] == "4"
    assert learner.job_variables["env"]["HEADRACE_ROOT"] == str(checkout.folder / "root")
    assert worker.work_pool_name == "headrace" and not worker.pull_steps
    assert "config" in learner.parameter_openapi_schema["properties"]
