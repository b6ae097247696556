"""A person cancels a firing: everything ends, nothing is left behind, and no later firing resurrects its run."""

import pytest
from support.scheduled import Scheduled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_a_cancelled_firing_ends_whole_and_is_left_alone(scheduled: Scheduled) -> None:
    scheduled.deploy()
    scheduled.worker()
    scheduled.pace(600)
    flow = scheduled.fire()
    scheduled.timed("the firing is at work", scheduled.at_work)
    family = scheduled.family()
    driver = scheduled.flow_process()
    ours = [driver, *driver.children(recursive=True)]
    assert len(ours) == 4 and set(ours) <= set(family), "a flow, a learner and two workers"
    scheduled.site.cancel(flow)
    scheduled.timed("every process is gone", lambda: scheduled.gone(ours))
    scheduled.timed("… and Prefect says that it is cancelled", lambda: scheduled.site.state(flow) == "CANCELLED")
    (run,) = scheduled.runs()
    assert scheduled.runs()[run].state == "stopped"

    scheduled.pace(0)
    after = scheduled.fire()
    scheduled.timed("the next firing ends", lambda: scheduled.site.state(after) == "COMPLETED")
    states = [(manifest.state, manifest.takeovers) for manifest in scheduled.runs().values()]
    assert states == [("stopped", 0), ("finished", 0)]
