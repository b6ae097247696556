"""Processes of a firing die: the next firing finds its run, finishes it, and then makes its own."""

import pytest
from support.scheduled import Scheduled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_the_next_firing_takes_over_what_a_killed_flow_process_left(scheduled: Scheduled) -> None:
    scheduled.deploy()
    scheduled.worker()
    scheduled.pace(600)
    flow = scheduled.fire()
    scheduled.timed("the firing is at work", scheduled.at_work)
    driver = scheduled.flow_process()
    ours = [driver, *driver.children(recursive=True)]
    driver.kill()
    scheduled.timed("its children are gone", lambda: scheduled.gone(ours))
    scheduled.timed("… and Prefect says that it has crashed", lambda: scheduled.site.state(flow) == "CRASHED")
    (run,) = scheduled.runs()
    assert scheduled.runs()[run].state == "running"

    scheduled.pace(0)
    after = scheduled.fire()
    scheduled.timed("the next firing has finished both", lambda: scheduled.site.state(after) == "COMPLETED")
    dead, own = scheduled.runs().values()
    assert (dead.run, dead.state, dead.takeovers, dead.flow_runs) == (run, "finished", 1, (str(flow.id), str(after.id)))
    assert (own.state, own.takeovers, own.flow_runs) == ("finished", 0, (str(after.id),))
    assert [(p.kind, p.ref) for p in own.parents] == [("champion", f"{run}@3")], "finished first, then its own"


def test_a_machine_that_goes_down_leaves_its_run_to_the_next_firing(scheduled: Scheduled) -> None:
    scheduled.deploy()
    scheduled.unlimited()
    worker = scheduled.worker()
    scheduled.pace(600)
    flow = scheduled.fire()
    scheduled.timed("the firing is at work", scheduled.at_work)
    driver = scheduled.flow_process()
    ours = [driver, *driver.children(recursive=True)]
    worker.kill()
    driver.kill()
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
    scheduled.pace(600)
    for attempt in range(4):
        flow = scheduled.fire()
        scheduled.timed(f"firing {attempt} is at work", scheduled.at_work)
        scheduled.flow_process().kill()
        scheduled.timed(f"firing {attempt} has crashed", lambda f=flow: scheduled.site.state(f) == "CRASHED")
    scheduled.pace(0)
    last = scheduled.fire()
    scheduled.timed("the last firing ends", lambda: scheduled.site.state(last) == "COMPLETED")
    dead, own = scheduled.runs().values()
    assert (dead.state, dead.takeovers) == ("failed", 3) and "its driver died" in dead.reason
    assert (own.state, own.parents) == ("finished", ())
