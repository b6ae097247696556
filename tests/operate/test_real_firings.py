"""Firings whose stages are the real ones: cancelled, killed and taken over in the middle of learning, then audited."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.prefect_site import Site
from support.recount import count_stage
from support.scheduled import Scheduled, real

from schemas import keys

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def learning(site: Site, tmp_path: Path) -> Iterator[Scheduled]:
    made = real(site, tmp_path, "learning")
    try:
        yield made
    finally:
        made.close()


def records(learning: Scheduled) -> int:
    return len([key for key in learning.store.list("runs/") if "/ledger/" in key])


def test_a_killed_firing_is_taken_over_and_nothing_is_lost_or_trained_twice(learning: Scheduled) -> None:
    learning.deploy()
    learning.worker()
    cancelled = learning.fire()
    learning.timed("a firing has made 3 steps", lambda: records(learning) >= 3)
    ours = learning.flow_and_below()
    learning.site.cancel(cancelled)
    learning.timed("cancelled: every process is gone", lambda: learning.gone(ours))
    learning.timed("cancelled: Prefect says so", lambda: learning.site.state(cancelled) == "CANCELLED")

    before = records(learning)
    killed = learning.fire()
    learning.timed("another has made 3 steps", lambda: records(learning) >= before + 3)
    ours = learning.flow_and_below()
    ours[0].kill()
    learning.timed("killed: every process is gone", lambda: learning.gone(ours))
    learning.timed("killed: Prefect says so", lambda: learning.site.state(killed) == "CRASHED")

    last = learning.fire()
    learning.timed("the next firing has finished both", lambda: learning.site.state(last) == "COMPLETED", 900)
    stopped, dead, own = learning.runs().values()
    assert (stopped.state, stopped.takeovers) == ("stopped", 0)
    assert (dead.state, dead.takeovers, own.state) == ("finished", 1, "finished")
    for manifest in (dead, own):
        told = json.loads(learning.headrace("audit", "verify", manifest.run, "--json"))
        counted = count_stage(Path(learning.root) / keys.rl(manifest.run, manifest.stages["rl"]))
        assert told["ok"] and counted["ok"]
        assert told["dispositions"] == counted["dispositions"]
