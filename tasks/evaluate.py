"""Evaluations: one process each, each known as made by its report, and each played by one process at a time.

Whoever plays one holds its lease in the store: a run's own flow, an evaluator on another machine, or `headrace eval`.
"""

import threading
from collections.abc import Callable

from schemas import keys
from schemas.errors import HeadraceError, RunStopped
from schemas.evaluation import EvaluationReport, EvaluationSpec
from storage.expired import check_weights
from tasks import processes
from tasks.ancestors import check_unseen
from tasks.figures import Evaluation, read_report
from tasks.lease import LeaseTaken, hold
from tasks.session import Session
from tasks.supervise import Restarts, keep_running

LOOK_SECONDS = 2.0
"""How often the report of an evaluation that somebody else plays is looked for."""


def evaluate(session: Session, wanted: Evaluation) -> EvaluationReport | None:
    """Make the evaluation unless its report is there; None when it was stopped or failed (the session knows why)."""
    try:
        report = _made(session, wanted)
    except HeadraceError as error:
        session.fail(error)
        return None
    return report and _checked(session, wanted, report)


def play(session: Session, wanted: Evaluation, *, niceness: int = 0) -> EvaluationReport | None:
    """Make the evaluation unless its report is there; None when a stop came first.

    LeaseTaken where somebody else plays it, RequestError or RunStopped with the cause where it can't be made.
    `niceness`: how far its process stands back behind others.
    """
    report = _alone(session, wanted, niceness)
    return report and _checked(session, wanted, report)


def _made(session: Session, wanted: Evaluation) -> EvaluationReport | None:
    """Wait for whoever plays it: its lease is renewed, so it ends, or the lease becomes free."""
    told = False
    while True:
        try:
            report = _alone(session, wanted)
            if report is not None:
                return report
        except LeaseTaken as error:
            if not told:
                session.tell(source(wanted), {"event": "log", "message": str(error)})
            told = True
        if session.stop.wait(LOOK_SECONDS):
            return None


def _alone(session: Session, wanted: Evaluation, niceness: int = 0) -> EvaluationReport | None:
    """The report; where there is none, make it under the evaluation's lease. None when a stop came or it was lost."""
    output, lost = keys.evaluation(session.request.run, wanted.key), threading.Event()
    report = read_report(session.store, output)
    if report is not None:
        return report
    key, what = keys.evaluation_lease(output), f"the evaluation of {source(wanted)}"
    with hold(session.store, key, what, "played", run=session.request.run, on_lost=lost.set):
        report = read_report(session.store, output)
        return report or _make(session, wanted, lambda: session.stop.is_set() or lost.is_set(), niceness)


def _checked(session: Session, wanted: Evaluation, report: EvaluationReport) -> EvaluationReport:
    output = keys.evaluation(session.request.run, wanted.key)
    check_report(report, wanted, session.request.data[wanted.setting].sha256, output)
    return report


def source(wanted: Evaluation) -> str:
    """How this evaluation is called."""
    return f"{wanted.name} on {wanted.setting} at T={wanted.temperature:g}"


def check_report(report: EvaluationReport, wanted: Evaluation, tasks_sha256: str, output: str) -> None:
    """A report speaks of one weights digest on one task-set digest, and of the episodes below `output`; RunStopped if
    they are not the wanted ones."""
    if report.weights_sha256 != wanted.weights.sha256:
        raise RunStopped(
            f"the report {wanted.key} is of weights {report.weights_sha256[:12]}, but {wanted.checkpoint} has "
            f"{wanted.weights.sha256[:12]}: it is not used"
        )
    if report.tasks_sha256 != tasks_sha256:
        raise RunStopped(f"the report {wanted.key} is of other tasks than {wanted.setting}: it is not used")
    if not report.trajectories.startswith(output):
        raise RunStopped(
            f"the report {wanted.key} is another run's: it speaks of the episodes in {report.trajectories}, "
            f"not of those in {output}; it is not used"
        )
    if (report.temperature, report.seed) != (wanted.temperature, wanted.seed):
        raise RunStopped(f"the report {wanted.key} was played at another temperature or seed: it is not used")


def check_seen(session: Session, wanted: Evaluation) -> None:
    """RequestError if the weights, or an ancestor of theirs, were trained on a task that they are to be measured on."""
    tasks = session.request.sets[wanted.setting]
    check_unseen(session.store, wanted.checkpoint, wanted.weights, [tasks], "which is to be measured")


def _make(session: Session, wanted: Evaluation, stop: Callable[[], bool], niceness: int) -> EvaluationReport | None:
    output, name = keys.evaluation(session.request.run, wanted.key), source(wanted)
    check_weights(session.store, wanted.weights)
    check_seen(session, wanted)
    session.tell(name, {"event": "stage", "name": "evaluation", "key": wanted.key})
    session.store.put(keys.spec(output), _spec(session, wanted, output).to_bytes())
    try:
        outcome = keep_running(
            processes.evaluate(session.store.url, name, keys.spec(output), niceness),
            lambda event: session.tell(name, event),
            stop=stop,
            silence=session.request.config.supervision.silence_seconds,
            restarts=Restarts(limit=2),
        )
    except HeadraceError:
        check_weights(session.store, wanted.weights)  # `headrace gc` may have come in between: that is the cause then
        raise
    report = read_report(session.store, output)
    if report is None and not outcome.stopped:
        raise RunStopped(f"the evaluation of {name} ended without a report: run again")
    return report


def _spec(session: Session, wanted: Evaluation, output: str) -> EvaluationSpec:
    request, tasks = session.request, session.request.data[wanted.setting]
    return EvaluationSpec(
        run=request.run,
        name=wanted.name,
        checkpoint=wanted.checkpoint,
        weights=wanted.weights,
        config=session.record.config,
        folder=str(request.folder),
        environment_sha256=request.environment_sha256,
        tasks=tasks.key,
        tasks_sha256=tasks.sha256,
        temperature=wanted.temperature,
        samples=wanted.samples,
        seed=wanted.seed,
        confidence=request.config.evaluation.confidence,
        setting=wanted.setting,
        output=output,
    )
