"""A worker, or `headrace serve`, is told to end: its firing stops cleanly and the next firing goes on with its run."""

import signal

import pytest
from support.real_run import COMMAND
from support.scheduled import Scheduled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("how", ["serve", "worker"])
def test_signals(scheduled: Scheduled, how: str, sent: signal.Signals) -> None:
    if how == "worker":
        scheduled.deploy()
        process = scheduled.worker()
    else:
        process = scheduled.host.start(
            "serve", str(COMMAND), "serve", "small.toml", "--root", scheduled.root, "--set", f"name={scheduled.name}"
        )
        scheduled.timed(
            "ready", lambda: "fire" in scheduled.host.said("serve") or "serv" in scheduled.host.said("serve")
        )
        import time

        time.sleep(8)
    scheduled.pace(600)
    flow = scheduled.fire()
    scheduled.timed("the firing is at work", scheduled.at_work)
    driver = scheduled.flow_process()
    ours = [driver, *driver.children(recursive=True)]
    process.send_signal(sent)
    import time

    for _ in range(45):
        time.sleep(1)
        if process.poll() is not None and scheduled.gone(ours):
            break
    print(
        _,
        how,
        sent,
        process.poll(),
        [p.cmdline()[:6] for p in ours if not scheduled.gone([p])],
        scheduled.site.state(flow),
        [(m.state, m.reason) for m in scheduled.runs().values()],
    )
    print(scheduled.host.said(how)[-1500:])
