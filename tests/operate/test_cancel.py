"""A person cancels a firing: everything ends, nothing is left behind, and no later firing resurrects its run."""

import pytest
from support.scheduled import Scheduled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_a_cancelled_firing_ends_whole_and_is_left_alone(scheduled: Scheduled) -> None:
    scheduled.deploy()
    scheduled.worker()
    flow, ours = scheduled.firing()
    assert len(ours) == 4, "a flow, a learner and two workers"
    scheduled.site.cancel(flow)
    scheduled.timed("every process is gone", lambda: scheduled.gone(ours))
    scheduled.timed("… and Prefect says so", lambda: scheduled.site.state(flow) == "CANCELLED")
    (stopped,) = scheduled.runs().values()
    assert stopped.state == "stopped"

    scheduled.pace(0)
    after = scheduled.fire()
    scheduled.timed("the next firing ends", lambda: scheduled.site.state(after) == "COMPLETED")
    found = [(manifest.state, manifest.takeovers) for manifest in scheduled.runs().values()]
    assert found == [("stopped", 0), ("finished", 0)]
