"""`headrace serve` of a run whose workers are a deployment: one process serves both, and no work pool is needed."""

import pytest
from support.real_run import COMMAND, until
from support.scheduled import Scheduled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_the_workers_of_a_served_run_are_served_too(scheduled: Scheduled) -> None:
    deployment = f"rollout-worker/{scheduled.name}"
    chosen = (f"name={scheduled.name}", "rollout.infrastructure=deployment", f"rollout.deployment={deployment}")
    settings = [word for setting in chosen for word in ("--set", setting)]
    scheduled.host.start("serve", str(COMMAND), "serve", "small.toml", "--root", scheduled.root, *settings)
    until(lambda: "are being served" in scheduled.host.said("serve"), "it serves")
    scheduled.pace(600)
    flow = scheduled.fire()
    scheduled.timed("a learner and two workers are at work", scheduled.at_work)
    scheduled.pace(0)
    scheduled.timed("the firing ends", lambda: scheduled.site.state(flow) == "COMPLETED")
    states = [scheduled.site.state(run) for run in scheduled.site.runs(deployment)]
    assert states == ["COMPLETED", "COMPLETED"]
    (run,) = scheduled.runs().values()
    assert run.state == "finished"
