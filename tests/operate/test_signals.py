"""A worker, `headrace serve` or a flow run is told to end: nothing is left, the next firing goes on with its run."""

import os
import signal
from subprocess import Popen

import pytest
from support.real_run import COMMAND, until
from support.scheduled import Scheduled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def serve(scheduled: Scheduled, log: str) -> "Popen[bytes]":
    words = ("serve", "small.toml", "--root", scheduled.root, "--set", f"name={scheduled.name}")
    serving = scheduled.host.start(log, str(COMMAND), *words)
    until(lambda: "are being served" in scheduled.host.said(log), "it serves")
    return serving


@pytest.mark.parametrize("sent", ["SIGTERM", "Ctrl-C"])
@pytest.mark.parametrize("how", ["serve", "worker"])
def test_the_end_of_whoever_fires_is_a_pause(scheduled: Scheduled, how: str, sent: str) -> None:
    if how == "worker":
        scheduled.deploy()
    start = scheduled.worker if how == "worker" else lambda log: serve(scheduled, log)
    process = start("first")
    _, ours = scheduled.firing()
    if sent == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    else:
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
    scheduled.timed("the firing's processes are gone", lambda: scheduled.gone(ours))
    scheduled.timed(f"… and so is the {how}", lambda: process.poll() is not None)
    assert process.poll() == 0, scheduled.host.said("first")
    (left,) = scheduled.runs().values()
    print(how, sent, left.state, left.reason)

    scheduled.pace(0)
    start("second")
    after = scheduled.fire()
    scheduled.timed("the next firing has finished both", lambda: scheduled.site.state(after) == "COMPLETED")
    assert [(m.state, m.takeovers) for m in scheduled.runs().values()] == [("finished", 1), ("finished", 0)]


def test_a_flow_run_that_is_told_to_end_drains_and_is_taken_over(scheduled: Scheduled) -> None:
    scheduled.deploy()
    scheduled.worker()
    flow, ours = scheduled.firing()
    ours[0].terminate()
    scheduled.timed("its processes are gone", lambda: scheduled.gone(ours))
    scheduled.timed("… and Prefect says that it has crashed", lambda: scheduled.site.state(flow) == "CRASHED")
    (left,) = scheduled.runs().values()
    assert (left.state, left.reason) == ("running", "its process was ended (TerminationSignal)")
    scheduled.pace(0)
    after = scheduled.fire()
    scheduled.timed("the next firing has finished both", lambda: scheduled.site.state(after) == "COMPLETED")
    assert [(m.state, m.takeovers) for m in scheduled.runs().values()] == [("finished", 1), ("finished", 0)]
