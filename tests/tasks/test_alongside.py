"""Evaluation beside training: checkpoints are played while the learner is at work, and failures end nothing."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from support.begun import EVERY, Told, begun, commit
from support.real_run import until

from tasks import announce
from tasks.alongside import evaluate_alongside
from tasks.due import due
from tasks.session import Session

Beside = Callable[[], "Future[int]"]


@pytest.fixture
def training(project: Path, root: str, fakes: None) -> Session:
    return begun(project, root, *EVERY)


@pytest.fixture
def beside(training: Session) -> Iterator[Beside]:
    """Starts it."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda: pool.submit(evaluate_alongside, training)
        training.stop.set()


def reported(session: Session) -> list[str]:
    return [e.name for e in session.survey().evaluations if e.report]


def learner_says(session: Session, step: int) -> None:
    announce.note(session, {"event": "step", "step": step, "steps": 9})


def test_a_checkpoint_is_played_while_the_learner_goes_on(training: Session, beside: Beside) -> None:
    made = beside()
    until(lambda: reported(training) == ["warm-up"], "the start is reported")
    for step in (4, 8):
        commit(training, step - 2, step)
        learner_says(training, step)
        until(lambda step=step: f"step {step}" in reported(training), f"step {step} is reported")
    assert not made.done()
    training.learned.set()
    assert made.result(30) == 3 and training.cause is None


def test_what_was_committed_before_it_looked_is_found_without_being_told(training: Session, beside: Beside) -> None:
    commit(training, 4)
    made = beside()
    until(lambda: reported(training) == ["warm-up", "step 4"], "both are reported")
    training.learned.set()
    assert made.result(30) == 2


def test_a_failure_is_told_and_ends_nothing(training: Session, beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    made = beside()
    until(lambda: reported(training) == ["warm-up"], "the start is reported")
    monkeypatch.setenv("FAKE_EVALUATION_FAILS", "small@4")
    commit(training, 4, 8)
    learner_says(training, 8)
    until(lambda: "step 8" in reported(training), "the other checkpoint is reported")
    training.learned.set()
    assert made.result(30) == 2 and training.cause is None and not training.stop.is_set()
    assert isinstance(training.sink, Told)
    assert "no episode of small@4 ends; training goes on, and it is looked at again when RL has ended" in (
        training.sink.messages()
    )
    found = due(training.store, "small")
    assert found is not None and [e.name for e in found.wanted] == ["step 4"]


def test_a_stop_ends_what_is_being_played(training: Session, beside: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_EVALUATION_SECONDS", "600")
    made, sink = beside(), training.sink
    assert isinstance(sink, Told)
    until(lambda: any(e["event"] == "evaluation" for _, e in sink), "it is being played")
    training.stop.set()
    assert made.result(60) == 0
    assert reported(training) == []


@pytest.mark.parametrize(
    ("event", "sent"),
    [
        ({"event": "step", "step": 4}, [4]),
        ({"event": "step", "step": 2}, []),
        ({"event": "recovered", "step": 8}, [8]),
        ({"event": "recovered", "step": 0}, []),
        ({"event": "closed", "step": 8}, []),
    ],
)
def test_an_event_is_sent_for_checkpoints_that_are_to_be_evaluated(
    event: dict, sent: list[int], project: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(announce, "emit", lambda config, root, run, step: calls.append(step))
    announce.note(begun(project, root, *EVERY), event)
    assert calls == [], "a run that evaluates beside itself sends none"
    announce.note(begun(project, root, *EVERY, "evaluation.infrastructure=deployment"), event)
    assert calls == sent
