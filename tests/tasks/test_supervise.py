"""Supervising real processes: events, stops, hangs, crashes, restarts; nothing is left behind."""

import time
from pathlib import Path

import psutil
import pytest
from support.projects import FAKES

from schemas.errors import RequestError, RunStopped
from tasks.children import Command, Event, environment, run_child
from tasks.supervise import Restarts, alike, keep_running

QUICK = Restarts(limit=2, pause=0.01, longest_pause=0.02)


def loud(what: str) -> Command:
    return Command("loud", "fake_processes", ("loud", "--spec", what))


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKES), prepend=":")


def children() -> set[int]:
    """Processes below this one; other tests may have left a server or tracker running for the session."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_events_and_noise_arrive_in_order() -> None:
    events: list[Event] = []
    outcome = run_child(loud("0"), events.append, stop=lambda: False, silence=30)
    assert outcome.code == 0 and not outcome.cause
    assert events == [{"event": "log", "message": "not json"}, {"event": "log", "message": "hello"}]


def test_an_exit_code_comes_with_the_last_words() -> None:
    events: list[Event] = []
    outcome = run_child(loud("7"), events.append, stop=lambda: False, silence=30)
    assert events[-1] == {"event": "log", "message": "to stderr"}
    assert outcome.code == 7 and "exit code 7 (to stderr)" in outcome.cause and not outcome.deliberate


def test_an_unexpected_exception_is_the_cause_but_not_deliberate() -> None:
    outcome = run_child(loud("raises"), lambda e: None, stop=lambda: False, silence=30)
    assert outcome.cause == "ValueError: a bug" and not outcome.deliberate and not outcome.refused


def test_a_stop_is_polite_and_is_a_return() -> None:
    heard: list[Event] = []
    outcome = run_child(loud("waits"), heard.append, stop=lambda: bool(heard), silence=30)
    assert outcome.stopped and not outcome.cause


def test_a_stubborn_child_is_killed_after_the_grace() -> None:
    before = children()
    heard: list[Event] = []
    ready = lambda: any(e["event"] == "ready" for e in heard)  # noqa: E731
    outcome = run_child(loud("stubborn"), heard.append, stop=ready, silence=30, grace=0.2)
    assert outcome.stopped and outcome.code == -9
    assert not children() - before


def test_silence_is_a_hang() -> None:
    before = children()
    outcome = run_child(loud("hangs"), lambda e: None, stop=lambda: False, silence=1.0, start=3.0, grace=0.2)
    assert "made no progress for 3 s" in outcome.cause and not outcome.stopped
    assert not children() - before


def test_a_killed_child_is_started_anew_a_limited_number_of_times() -> None:
    events: list[Event] = []
    with pytest.raises(RunStopped, match=r"loud failed \(3 times\): it was killed by SIGKILL"):
        keep_running(loud("killed"), events.append, stop=lambda: False, silence=30, restarts=QUICK)
    assert sum(e["event"] == "restart" for e in events) == 2


def test_a_child_that_had_begun_may_end_without_a_word_as_often_as_is_allowed() -> None:
    events: list[Event] = []
    allowed = Restarts(limit=9, pause=0.01, longest_pause=0.02, alike=3)
    with pytest.raises(RunStopped, match=r"loud failed \(3 times\): ended with exit code 7"):
        keep_running(loud("mute"), events.append, stop=lambda: False, silence=30, restarts=allowed)
    assert sum(e["event"] == "restart" for e in events) == 2


def test_failures_that_led_somewhere_are_forgiven() -> None:
    events: list[Event] = []
    found = iter([0, 0, 0, 1, 1, 1, 1, 1])
    with pytest.raises(RunStopped, match=r"loud failed \(3 times\): it was killed by SIGKILL"):
        keep_running(
            loud("killed"), events.append, stop=lambda: False, silence=30, restarts=QUICK, progress=lambda: next(found)
        )
    assert sum(e["event"] == "restart" for e in events) == 4


def test_the_same_cause_twice_ends_it() -> None:
    with pytest.raises(RunStopped, match=r"\(2 times\): ValueError: a bug"):
        keep_running(loud("raises"), lambda e: None, stop=lambda: False, silence=30, restarts=QUICK)


def test_causes_are_alike_whatever_numbers_they_name() -> None:
    assert alike("KeyError: 7 in <x object at 0x7f3a> of w1-9fe3", "KeyError: 12 in <x object at 0x8b20> of w2-03ab")
    assert not alike("KeyError: 7", "ValueError: 7")


def test_a_wrong_request_is_not_repeated(fakes: None, project: Path, root: str) -> None:
    command = Command("learner", "fake_processes", ("nothing", "--bad"))
    started = time.monotonic()
    with pytest.raises((RunStopped, RequestError)):
        keep_running(command, lambda e: None, stop=lambda: False, silence=30, restarts=Restarts(limit=0))
    assert time.monotonic() - started < 30


def test_what_the_user_set_is_kept() -> None:
    found = environment({"JAX_COMPILATION_CACHE_DIR": "/mine", "XDG_CACHE_HOME": "/cache"})
    assert found["JAX_COMPILATION_CACHE_DIR"] == "/mine"
    assert environment({"XDG_CACHE_HOME": "/cache"})["JAX_COMPILATION_CACHE_DIR"] == "/cache/headrace/jax"
