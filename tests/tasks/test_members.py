"""Several processes as one child: they end together, and what is told is what ended the first of them."""

import threading
from functools import partial

import psutil
import pytest
from support.projects import FAKES

from schemas.errors import RunStopped
from tasks.children import Command, Event, Outcome
from tasks.members import run_members
from tasks.supervise import Restarts, keep_running

LOST = Outcome(1, "another process of this learner is gone", deliberate=False, kind="PartnerLost")
KILLED = Outcome(-9, "was killed by SIGKILL", silent=True)
ABORTED = Outcome(-6, "was killed by SIGABRT", silent=True)
STOPS = Outcome(1, "the update is not finite", deliberate=True, kind="RunStopped")
BUG = Outcome(1, "ValueError: a bug", kind="ValueError")
DRAINED = Outcome(0, stopped=True)
SHOT = Outcome(-9, stopped=True)


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKES), prepend=":")


def command(*each: str) -> Command:
    return Command("learner", "fake_processes", ("member", "--spec", ",".join(each)))


@pytest.mark.parametrize(
    ("first", "one", "order", "cause"),
    [
        (DRAINED, KILLED, (1, 0), "lost its process 1, which was killed by SIGKILL"),
        (SHOT, KILLED, (1, 0), "lost its process 1, which was killed by SIGKILL"),
        (LOST, KILLED, (0, 1), "lost its process 1, which was killed by SIGKILL"),
        (KILLED, LOST, (0, 1), "was killed by SIGKILL"),
        (KILLED, LOST, (1, 0), "was killed by SIGKILL"),
        (KILLED, ABORTED, (1, 0), "was killed by SIGKILL"),
        (STOPS, ABORTED, (1, 0), "the update is not finite"),
        (LOST, STOPS, (0, 1), "the update is not finite"),
        (BUG, KILLED, (0, 1), "lost its process 1, which was killed by SIGKILL"),
        (BUG, ABORTED, (1, 0), "ValueError: a bug"),
        (LOST, ABORTED, (0, 1), "lost its process 1, which was killed by SIGABRT"),
    ],
)
def test_the_cause_is_that_of_the_process_that_ended_the_others(
    first: Outcome, one: Outcome, order: tuple[int, int], cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, outcomes = (threading.Event(), threading.Event()), (first, one)

    def child(command: Command, *_: object, **__: object) -> Outcome:
        number = int(command.arguments[-3])
        if order.index(number) == 1:
            assert ends[1 - number].wait(60)
        ends[number].set()
        return outcomes[number]

    monkeypatch.setattr("tasks.members.run_child", child)
    found = run_members(command(), lambda event: None, count=2, stop=lambda: False, silence=60)
    assert (found.cause, found.stopped, found.deliberate) == (cause, False, cause == STOPS.cause)
    assert found.code


def test_each_has_a_number_and_all_have_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, ...]] = []

    def child(command: Command, *_: object, **__: object) -> Outcome:
        given.append(command.arguments)
        return Outcome(0)

    monkeypatch.setattr("tasks.members.run_child", child)
    assert run_members(command(), lambda event: None, count=3, stop=lambda: False, silence=60) == Outcome(0)
    assert sorted(a[-3] for a in given) == ["0", "1", "2"] and len({a[-1] for a in given}) == 1


def test_a_thread_that_fails_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def child(command: Command, *_: object, stop: "partial[bool]", **__: object) -> Outcome:
        if command.arguments[-3] == "1":
            raise OSError("no more processes")
        while not stop():
            threading.Event().wait(0.01)
        return DRAINED

    monkeypatch.setattr("tasks.members.run_child", child)
    with pytest.raises(OSError, match="no more processes"):
        run_members(command(), lambda event: None, count=2, stop=lambda: False, silence=60)


def test_a_stop_reaches_all_of_them_and_nobody_is_left() -> None:
    said: list[Event] = []
    before = set(psutil.Process().children(recursive=True))
    hello = lambda: sum("hello" in e["message"] for e in said) == 2  # noqa: E731
    found = run_members(command("waits", "waits"), said.append, count=2, stop=hello, silence=60, grace=60)
    assert found.stopped and not found.code
    assert {e["message"] for e in said} == {"hello", "process 1: hello"}
    assert not set(psutil.Process().children(recursive=True)) - before


def test_all_are_started_anew_as_one_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.members.run_child", lambda one, *_, **__: KILLED if one.arguments[-3] == "1" else LOST)
    events: list[Event] = []
    with pytest.raises(
        RunStopped, match=r"^learner failed \(2 times\): it lost its process 1, which was killed by SIG"
    ):
        keep_running(
            command(), events.append, stop=lambda: False, silence=60, restarts=Restarts(limit=1, pause=0.01),
            run=partial(run_members, count=2),
        )  # fmt: skip
    (restart,) = (e["message"] for e in events if e["event"] == "restart")
    assert restart == "learner lost its process 1, which was killed by SIGKILL; starting it again in 0.01 s"
