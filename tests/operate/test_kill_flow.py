"""Processes of a firing die: the next firing finds its run, finishes it, and then makes its own."""

import pytest
from support.scheduled import Scheduled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_the_next_firing_takes_over_what_a_killed_flow_process_left(scheduled: Scheduled) -> None:
    scheduled.deploy()
    scheduled.worker()
    flow, ours = scheduled.firing()
    ours[0].kill()
    scheduled.timed("its children are gone", lambda: scheduled.gone(ours))
    scheduled.timed("… and Prefect says that it has crashed", lambda: scheduled.site.state(flow) == "CRASHED")
    (left,) = scheduled.runs().values()
    assert left.state == "running"

    scheduled.pace(0)
    after = scheduled.fire()
    scheduled.timed("the next firing has finished both", lambda: scheduled.site.state(after) == "COMPLETED")
    dead, own = scheduled.runs().values()
    assert (dead.run, dead.state, dead.takeovers) == (left.run, "finished", 1)
    assert dead.flow_runs == (str(flow.id), str(after.id)) and own.flow_runs == (str(after.id),)
    assert (own.state, own.takeovers) == ("finished", 0)
    assert [(p.kind, p.ref) for p in own.parents] == [("champion", f"{left.run}@3")], "finished first, then its own"


def test_a_machine_that_goes_down_leaves_its_run_to_the_next_firing(scheduled: Scheduled) -> None:
    scheduled.deploy()
    worker = scheduled.worker()
    flow, ours = scheduled.firing()
    worker.kill()
    ours[0].kill()
    scheduled.timed("its children are gone", lambda: scheduled.gone(ours))
    assert scheduled.site.state(flow) == "RUNNING", "nobody is left to tell Prefect"

    scheduled.pace(0)
    scheduled.worker("another")
    after = scheduled.fire()
    scheduled.timed("the next firing has finished both", lambda: scheduled.site.state(after) == "COMPLETED")
    assert [m.state for m in scheduled.runs().values()] == ["finished", "finished"]
    with scheduled.site.client() as client:
        state = client.read_flow_run(flow.id).state
    assert state is not None and state.is_crashed() and f"the flow run {after.id} goes on" in str(state.message)


def test_a_run_that_outlives_no_driver_is_given_up(scheduled: Scheduled) -> None:
    scheduled.deploy()
    scheduled.worker()
    for _ in range(4):
        flow, ours = scheduled.firing()
        ours[0].kill()
        scheduled.timed("it has crashed", lambda f=flow: scheduled.site.state(f) == "CRASHED")
    scheduled.pace(0)
    last = scheduled.fire()
    scheduled.timed("the last firing ends", lambda: scheduled.site.state(last) == "COMPLETED")
    dead, own = scheduled.runs().values()
    assert (dead.state, dead.takeovers) == ("failed", 3) and "its driver died" in dead.reason
    assert (own.state, own.parents) == ("finished", ())
