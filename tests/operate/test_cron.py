"""A cron deployment fires by itself, and each run starts from the champion of the one before."""

import pytest
from support.scheduled import Scheduled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_cron_fires_twice_and_the_second_run_starts_from_the_firsts_champion(scheduled: Scheduled) -> None:
    scheduled.deploy("--cron", "* * * * *", "--timezone", "Europe/Berlin")
    scheduled.worker()
    scheduled.timed("the first run has ended", lambda: len(scheduled.ended()) >= 1)
    scheduled.timed("the second run has ended", lambda: len(scheduled.ended()) >= 2)
    first, second = scheduled.ended()[:2]
    runs = scheduled.runs()
    assert first.startswith(f"{scheduled.name}-2") and runs[first].schedule == scheduled.name
    assert runs[first].parents == ()
    assert [(p.kind, p.ref) for p in runs[second].parents] == [("champion", f"{first}@3")]

    flows = {str(flow.id): flow for flow in scheduled.site.runs(scheduled.deployment)}
    for name in (first, second):
        (driver,) = runs[name].flow_runs
        assert flows[driver].auto_scheduled and flows[driver].state_name == "Completed"
        due = flows[driver].expected_start_time
        assert due is not None and name == f"{scheduled.name}-{due:%Y%m%dT%H%M%S}"
        late = flows[driver].start_time
        assert late is not None
        scheduled.timings[f"{name} began late by"] = round((late - due).total_seconds(), 1)
