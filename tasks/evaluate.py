"""Evaluations: one process each, several side by side, each known as made by its report."""

from schemas import keys
from schemas.errors import HeadraceError, RunStopped
from schemas.evaluation import EvaluationReport, EvaluationSpec
from tasks import processes
from tasks.ancestors import check_unseen
from tasks.session import Session
from tasks.supervise import Restarts, keep_running
from tasks.survey import Evaluation, read_report


def evaluate(session: Session, wanted: Evaluation) -> EvaluationReport | None:
    """Make the evaluation unless its report is there; None when it was stopped or failed (the session knows why)."""
    output = keys.evaluation(session.request.run, wanted.key)
    report = read_report(session.store, output)
    if report is None:
        session.tell(source(wanted), {"event": "stage", "name": "evaluation", "key": wanted.key})
        report = _make(session, wanted, output)
    if report is not None:
        check_report(report, wanted, session.request.data[wanted.setting].sha256, output)
    return report


def source(wanted: Evaluation) -> str:
    """How events of this evaluation are called."""
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


def _make(session: Session, wanted: Evaluation, output: str) -> EvaluationReport | None:
    key, name = keys.spec(output), source(wanted)
    try:
        check_seen(session, wanted)
        session.store.put(key, _spec(session, wanted, output).to_bytes())
        outcome = keep_running(
            processes.evaluate(session.store.url, name, key),
            lambda event: session.tell(name, event),
            stop=session.stop.is_set,
            silence=session.request.config.supervision.silence_seconds,
            restarts=Restarts(limit=2),
        )
    except HeadraceError as error:
        session.fail(error)
        return None
    report = read_report(session.store, output)
    if report is None and not outcome.stopped:
        session.fail(RunStopped(f"the evaluation of {name} ended without a report: run again"))
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
        tasks=tasks.key,
        tasks_sha256=tasks.sha256,
        temperature=wanted.temperature,
        samples=wanted.samples,
        seed=wanted.seed,
        confidence=request.config.evaluation.confidence,
        setting=wanted.setting,
        output=output,
    )
