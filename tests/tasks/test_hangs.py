"""A hung child is ended soon and started again; a busy one that said so is left alone."""

import itertools

import pytest
from support.projects import FAKES

from schemas.errors import RunStopped
from tasks.children import Command, Event, Outcome, run_child
from tasks.output import Event as Said
from tasks.patience import Patience
from tasks.supervise import Restarts, keep_running


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKES), prepend=":")


def child(kind: str, silence: float = 1.0, start: float = 60.0) -> tuple[Outcome, list[Event]]:
    events: list[Event] = []
    command = Command("rude", "rude_processes", (kind,))
    outcome = run_child(command, events.append, stop=lambda: False, silence=silence, start=start, grace=0.5)
    return outcome, events


def log(events: list[Event]) -> str:
    return "\n".join(str(e["message"]) for e in events if e["event"] == "log")


def test_a_loop_without_progress_is_ended_though_it_talks_and_tells_where_it_was() -> None:
    outcome, events = child("stuck")
    assert outcome.cause == "made no progress for 1 s and was killed" and not outcome.stopped
    assert "in stuck" in log(events)


def test_it_is_started_again_and_given_up_after_a_while() -> None:
    events: list[Event] = []
    restarts = Restarts(limit=1, pause=0.01, longest_pause=0.02)
    with pytest.raises(RunStopped, match=r"rude failed \(2 times\): it made no progress for 1 s and was killed"):
        keep_running(
            Command("rude", "rude_processes", ("stuck",)), events.append, stop=lambda: False, silence=1.0, start=60.0,
            grace=0.5, restarts=restarts,
        )  # fmt: skip
    assert sum(e["event"] == "restart" for e in events) == 1


def test_a_child_that_announced_its_silence_is_left_alone() -> None:
    outcome, events = child("announced")
    assert outcome.code == 0 and not outcome.cause and not log(events)


def test_a_child_that_takes_longer_than_it_announced_is_ended() -> None:
    outcome, _ = child("late")
    assert outcome.cause == "was busy with saving for longer than the 0.5 s that it announced, and was killed"


def test_a_child_that_holds_the_interpreter_for_longer_than_announced_is_ended() -> None:
    outcome, events = child("locked")
    assert outcome.code == -9 and "was busy with matching for longer than the 0.5 s" in outcome.cause
    assert "in locked" in log(events), "the stack is written by a handler that needs no lock"


def test_a_child_that_never_gives_a_sign_is_ended() -> None:
    outcome, _ = child("mute", start=2.0)
    assert outcome.cause == "made no progress for 2 s and was killed"


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, patience: Patience, seconds: float) -> str:
        """Let time go by as a supervisor that looks every second sees it; the first thing it finds."""
        for _ in range(int(seconds)):
            self.now += 1
            if found := patience.hung():
                return found
        return ""


def begun(time: Time, *said: Said) -> Patience:
    patience = Patience(10, 30, time)
    patience.note({"event": "beat"})
    for event in said:
        patience.note(event)
    return patience


def test_figures_are_no_sign_of_progress() -> None:
    time = Time()
    patience = begun(time)
    for _ in range(10):
        assert not time.pass_by(patience, 1)
        patience.note({"event": "worker", "trajectories": 1})
    assert time.pass_by(patience, 1) == "made no progress for 10 s and was killed"


def test_of_several_announcements_the_longest_counts_and_an_end_is_a_sign() -> None:
    time, numbers = Time(), itertools.count(1)
    busy = [{"event": "busy", "id": next(numbers), "what": w, "seconds": s} for w, s in (("a", 20), ("b", 40))]
    patience = begun(time, *busy)
    assert not time.pass_by(patience, 39)
    patience.note({"event": "done", "id": 2})
    assert not time.pass_by(patience, 10)
    assert time.pass_by(patience, 2).startswith("was busy with a for longer than the 20 s")


def test_time_in_which_nobody_looked_is_forgiven() -> None:
    time = Time()
    patience = begun(time, {"event": "busy", "id": 1, "what": "a", "seconds": 12})
    assert not time.pass_by(patience, 8)
    time.now += 3600
    assert not patience.hung() and not time.pass_by(patience, 3)
    assert "busy with a" in time.pass_by(patience, 3)


def test_before_its_first_sign_a_child_may_take_longer() -> None:
    time = Time()
    patience = Patience(10, 30, time)
    assert not time.pass_by(patience, 30) and time.pass_by(patience, 1)
