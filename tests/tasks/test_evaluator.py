"""Evaluators: whoever comes makes what is due, nobody makes it twice, and the run that trains is left alone."""

import contextvars
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.begun import EVERY, Told, begun, commit, end
from support.real_run import until

from schemas import keys
from schemas.errors import RequestError, RunStopped
from schemas.manifest import Lease
from tasks.due import due
from tasks.evaluate import evaluate
from tasks.evaluator import Evaluator, Tally
from tasks.figures import Evaluation
from tasks.lease import acquire, hold, visible_processes
from tasks.session import Session


@pytest.fixture
def training(project: Path, root: str, fakes: None) -> Session:
    session = begun(project, root, *EVERY)
    commit(session, 4, 8)
    return session


def evaluate_due(session: Session, *runs: str, sink: Told | None = None) -> Tally:
    return Evaluator(session.store, sink=Told() if sink is None else sink, stop=threading.Event()).run(
        runs or ("small",)
    )


@contextmanager
def ends(session: Session) -> Iterator[None]:
    """Whatever becomes of the test, what it started ends."""
    try:
        yield
    finally:
        session.stop.set()


def wanted(session: Session, name: str) -> Evaluation:
    return next(e for e in session.survey().evaluations if e.name == name)


def lease_key(session: Session, name: str) -> str:
    return keys.evaluation_lease(keys.evaluation("small", wanted(session, name).key))


def test_what_is_due_is_made_while_somebody_drives_the_run_and_never_again(training: Session) -> None:
    with hold(training.store, keys.run_lease("small"), "run small"):
        tally = evaluate_due(training)
    assert {r.name for r in tally.made} == {"warm-up", "step 4", "step 8"} and not tally.failed
    assert str(tally) == "3 made"
    assert str(evaluate_due(training)) == "nothing is due"
    assert training.cause is None


def test_whoever_is_told_is_told_in_the_callers_context(training: Session) -> None:
    """A sink may speak to Prefect, whose settings and flow run are context variables."""
    here, contexts = contextvars.ContextVar("here", default=""), set[str]()

    class Hears(Told):
        def __call__(self, source: str, event: dict) -> None:
            contexts.add(here.get())

    here.set("the caller's")
    assert str(evaluate_due(training, sink=Hears())) == "3 made"
    assert contexts == {"the caller's"}


def test_what_somebody_else_plays_is_left_to_them(training: Session) -> None:
    key = lease_key(training, "step 4")
    held = acquire(training.store, key, "it", seconds=6.0)
    tally = evaluate_due(training)
    assert str(tally) == "2 made, 1 played elsewhere"
    assert "the evaluation of step 4 on evaluation.tasks at T=1 is being played by process" in tally.elsewhere[0]
    held.release()
    assert str(evaluate_due(training)) == "1 made"


def test_a_dead_evaluators_lease_is_taken_over(training: Session) -> None:
    here = {"host": socket.gethostname(), "processes": visible_processes()}
    dead = Lease(owner="x", pid=2**22 - 1, seconds=1000.0, beat=3, **here)
    silent = Lease(owner="y", host="elsewhere", pid=1, seconds=0.5, beat=3)
    training.store.put(lease_key(training, "step 4"), dead.to_bytes())
    training.store.put(lease_key(training, "step 8"), silent.to_bytes())
    assert str(evaluate_due(training)) == "3 made"


def test_of_two_evaluators_one_plays_each(training: Session) -> None:
    told = [Told(), Told()]
    with ThreadPoolExecutor(2) as pool:
        tallies = list(pool.map(lambda sink: evaluate_due(training, sink=sink), told))
    started = [source for sink in told for source, event in sink if event["event"] == "stage"]
    assert len(started) == len(set(started)) == 3
    assert not any(t.failed for t in tallies)
    assert {r.checkpoint for t in tallies for r in t.made} >= {"small@4", "small@8"}
    found = due(training.store, "small")
    assert found is not None and not found.wanted


def test_whoever_loses_the_lease_stops_and_waits_for_the_other(
    training: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(acquire.__kwdefaults__, "seconds", 1.5)
    monkeypatch.setenv("FAKE_EVALUATION_SECONDS", "600")
    played, key = wanted(training, "step 4"), lease_key(training, "step 4")
    sink = training.sink
    assert isinstance(sink, Told)
    with ThreadPoolExecutor(1) as pool, ends(training):
        report = pool.submit(evaluate, training, played)
        until(lambda: any(e["event"] == "evaluation" for _, e in sink), "it is being played")
        monkeypatch.setenv("FAKE_EVALUATION_SECONDS", "0")
        other = Lease(owner="other", host="elsewhere", pid=1, seconds=0.5, beat=0)
        training.store.put(key, other.to_bytes())
        found = report.result(120)
    assert found is not None and found.checkpoint == "small@4" and training.cause is None
    assert len([e for _, e in sink if e.get("name") == "evaluation"]) == 2, "then when the other fell silent"


def test_one_that_fails_keeps_no_other_from_being_made(training: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_EVALUATION_FAILS", "small@4")
    tally = evaluate_due(training)
    assert str(tally) == "2 made, 1 failed"
    with pytest.raises(RunStopped, match="no episode of small@4 ends"):
        tally.check()


def test_a_run_that_cannot_be_read_keeps_no_other_from_being_evaluated(training: Session) -> None:
    tally = evaluate_due(training, "missing", "small")
    assert str(tally) == "3 made, 1 failed"
    with pytest.raises(RequestError, match="there is no run `missing`"):
        tally.check()


def test_a_machine_without_the_runs_modules_says_so(project: Path, root: str, fakes: None, tmp_path: Path) -> None:
    (project / "mine.py").write_text("def score(task, messages):\n    return 1.0\n")
    session = begun(project, root, *EVERY, "environment.reward=mine:score")
    commit(session, 4)
    (tmp_path / "elsewhere").mkdir()
    evaluator = Evaluator(session.store, sink=Told(), stop=threading.Event(), folder=str(tmp_path / "elsewhere"))
    tally = evaluator.run(["small"])
    assert not tally.made
    with pytest.raises(RequestError, match="copy the folder here and name it with --folder or HEADRACE_FOLDER"):
        tally.check()
    assert str(evaluate_due(session)) == "2 made"


def test_what_becomes_due_meanwhile_is_made_too(training: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ends(Told):
        def __call__(self, source: str, event: dict) -> None:
            if not self:
                end(training, 9)
            super().__call__(source, event)

    tally = evaluate_due(training, sink=Ends())
    assert [r.name for r in tally.made if r.checkpoint == "small@9"] == ["candidate"] and len(tally.made) == 4
