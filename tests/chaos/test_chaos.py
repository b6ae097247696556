"""kill -9 and SIGSTOP of learner, workers and driver at seeded random moments, more than twenty in one run.

Nothing is lost and nothing happens twice: the audit is ok after every blow, the run comes to its end, and replaying its
ledger gives the last checkpoint to the bit.
"""

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from support.chaos import LEARNER, LEASE, WORKER, Chaos
from support.phases import CHECKPOINT, END, STEP

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
STEPS = 90
KILL, STOP, GO = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT


@pytest.fixture
def chaos(project: Path, root: str, tmp_path: Path, prefect_url: str) -> Iterator[Chaos]:
    made = Chaos(project, root, tmp_path / "chaos", prefect_url, STEPS, seed=3)
    yield made
    made.end()


def kill_learner_at(chaos: Chaos, phase: str) -> None:
    chaos.allow(3)
    chaos.order(KILL, phase)


def kill_learner(chaos: Chaos) -> None:
    """At any moment of its life: starting, recovering, waiting or in a step."""
    chaos.allow(1)
    pid = chaos.one(LEARNER)
    time.sleep(chaos.random.uniform(0, 4))
    chaos.strike(pid, "learner", KILL)


def freeze_learner(chaos: Chaos) -> None:
    chaos.allow(1)
    pid = chaos.one(LEARNER)
    chaos.strike(pid, "learner", STOP)
    time.sleep(chaos.random.uniform(0.1, 2 * LEASE))
    _go_on(pid)


def learner_becomes_a_zombie(chaos: Chaos, phase: str) -> None:
    """It stops at a phase, another learner takes over, it wakes up: fenced, with a sentence that names who did it."""
    chaos.allow(3)
    pid, at = chaos.order(STOP, phase), chaos.made()
    rival = chaos.rival()
    chaos.allow(1)
    driver = chaos.driver
    chaos.until(lambda: chaos.made() > at, "the rival's first step", keep=False)
    _go_on(pid)
    chaos.until(lambda: driver.poll() is not None, "the end of the fenced learner's driver", keep=False)
    assert driver.returncode == 1
    last = chaos.said(driver).strip().splitlines()[-1]
    assert "taken over" in last or "took over" in last, chaos.said(driver)
    assert f"-{rival.pid}-" in last, "the sentence names the learner that took over"
    assert rival.poll() is None, chaos.said(rival)
    chaos.strike(rival.pid, "rival learner", KILL)
    rival.wait()
    chaos.ensure()


def kill_worker(chaos: Chaos) -> None:
    chaos.allow(1)
    pid = chaos.one(WORKER)
    time.sleep(chaos.random.uniform(0, 1))
    chaos.strike(pid, "worker", KILL)


def freeze_worker(chaos: Chaos) -> None:
    """For less than a lease, or for so long that others take over its groups; then it goes on as a zombie."""
    pid = chaos.one(WORKER)
    chaos.strike(pid, "worker", STOP)
    chaos.allow(2)
    time.sleep(chaos.random.choice((0.3, 0.8, 2 * LEASE, 4 * LEASE)))
    _go_on(pid)


def kill_driver(chaos: Chaos) -> None:
    chaos.allow(1)
    time.sleep(chaos.random.uniform(0, 3))
    for pid in chaos.pids(LEARNER)[:1]:
        chaos.strike(chaos.driver.pid, f"driver, learner {chaos.phase(pid)}", KILL)
        break
    else:
        chaos.strike(chaos.driver.pid, "driver, no learner", KILL)
    chaos.driver.wait()
    chaos.driver = chaos.drive()


def driver_becomes_a_zombie(chaos: Chaos) -> None:
    """It stops for longer than its lease while its children go on; a second driver takes over the run."""
    first = chaos.driver
    chaos.strike(first.pid, "driver", STOP)
    chaos.driver = chaos.drive()
    chaos.one(LEARNER)
    chaos.allow(2)
    _go_on(first.pid)
    chaos.until(lambda: first.poll() is not None, "the end of the first driver")
    assert first.returncode == 1
    assert "another process has taken over run" in chaos.said(first) or "took over" in chaos.said(first)


def _go_on(pid: int) -> None:
    import os

    try:
        os.kill(pid, GO)
    except ProcessLookupError:
        return


def plan() -> list[Callable[[Chaos], None]]:
    """Every kind of blow, some of them several times, as often as it takes for more than twenty."""
    at = [lambda c, p=p: kill_learner_at(c, p) for p in (*STEP, *CHECKPOINT)]
    zombies = [lambda c, p=p: learner_becomes_a_zombie(c, p) for p in (STEP[0], STEP[1], STEP[3], CHECKPOINT[0])]
    others = [kill_learner] * 4 + [freeze_learner] * 2 + [kill_worker] * 4 + [freeze_worker] * 4 + [kill_driver] * 4
    return [*at, *zombies, *others, driver_becomes_a_zombie]


def test_whatever_dies_or_sleeps_nothing_is_lost_and_nothing_happens_twice(chaos: Chaos) -> None:
    chaos.until_made(1)
    blows = plan()
    chaos.random.shuffle(blows)
    for blow in blows:
        blow(chaos)
        chaos.check()
        chaos.until_made(chaos.allowed - 1)
    assert chaos.allowed < STEPS
    chaos.allow(STEPS)
    for phase in (STEP[1], CHECKPOINT[0], *END):
        chaos.order(KILL, phase)
        chaos.check()
    chaos.finish()
    found = chaos.check().to_json()
    (stage,) = found["stages"]
    assert stage["closed"] and (stage["steps"], stage["records"]) == (STEPS, STEPS + 1)
    assert found["unaccounted"] == found["trained_twice"] == found["pending"] == 0
    assert found["max_staleness"] <= stage["bound"]
    kills = Counter(f"{b.target}: {b.how} at {b.phase or 'any moment'}" for b in chaos.blows)
    assert len(chaos.blows) >= 20
    print(json.dumps({"kills": kills, "ends": chaos.ends, "seconds": chaos.blows[-1].after, "audit": found}, indent=1))
    print("\n".join(json.dumps(asdict(b)) for b in chaos.blows))
