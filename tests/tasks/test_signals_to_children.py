"""A signal to one supervised process: what comes of it is the same for learner, workers, warm-ups and evaluations."""

import os
import signal

import psutil
import pytest
from support.projects import FAKES

from tasks.children import Command, Event
from tasks.supervise import Restarts, keep_running


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKES), prepend=":")


def supervised(how: signal.Signals) -> tuple[int, bool, list[Event]]:
    """Send a signal to the first process; stop when there is a second. Exit code, whether stopped, what was said."""
    events: list[Event] = []
    pids: list[int] = []

    def take(event: Event) -> None:
        events.append(event)
        if event["event"] == "ready":
            pids.append(event["pid"])
            if len(pids) == 1:
                os.kill(event["pid"], how)

    outcome = keep_running(
        Command("process", "rude_processes", ("works",)), take, stop=lambda: len(pids) > 1, silence=2.0, start=60.0,
        grace=5.0, restarts=Restarts(pause=0.01),
    )  # fmt: skip
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    return outcome.code, outcome.stopped, events


def restarts(events: list[Event]) -> list[str]:
    return [str(e["message"]) for e in events if e["event"] == "restart"]


def test_kill_9_starts_it_again() -> None:
    code, stopped, events = supervised(signal.SIGKILL)
    assert (code, stopped) == (0, True), "the second one was asked to stop, and that is a return"
    assert restarts(events) == ["process was killed by SIGKILL; starting it again in 0.01 s"]


def test_a_frozen_one_is_ended_and_started_again() -> None:
    code, stopped, events = supervised(signal.SIGSTOP)
    assert (code, stopped) == (0, True)
    assert restarts(events) == ["process made no progress for 2 s and was killed; starting it again in 0.01 s"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_it_drains_and_that_is_a_return(how: signal.Signals) -> None:
    code, stopped, events = supervised(how)
    assert (code, stopped, restarts(events)) == (0, False, [])
