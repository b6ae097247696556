"""Two firings at once: the store lets one work. Prefect has no limit that could refuse either."""

import pytest
from support.scheduled import Scheduled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_an_overlapping_firing_is_refused_by_the_store_alone(scheduled: Scheduled) -> None:
    scheduled.deploy()
    scheduled.worker()
    scheduled.pace(600)
    both = [scheduled.fire(), scheduled.fire()]

    def states() -> list[str]:
        return sorted(scheduled.site.state(flow) for flow in both)

    scheduled.timed("one of two is refused", lambda: states() == ["CANCELLED", "RUNNING"])
    refused = next(f for f in scheduled.site.runs(scheduled.deployment) if f.state_name == "Cancelled")
    assert refused.state is not None and f"the schedule {scheduled.name} is being driven" in str(refused.state.message)
    assert len(scheduled.runs()) == 1, "the refused one has written nothing"
    scheduled.pace(0)
    scheduled.timed("the other ends", lambda: states() == ["CANCELLED", "COMPLETED"])
    assert len(scheduled.ended()) == 1
