"""Work on a checkpoint beside its run: evaluations and the gate, without a flow. The run's lease is held meanwhile."""

from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from flows.lines import Lines
from schemas.errors import RunStopped
from schemas.evaluation import EvaluationReport
from schemas.promotion import GateDecision
from tasks import evaluate as evaluations
from tasks import promote as gate
from tasks.checkpoints import Checkpoint
from tasks.session import Session, opened
from tasks.survey import Evaluation


def evaluate(checkpoint: Checkpoint, wanted: list[Evaluation]) -> list[EvaluationReport]:
    """Make the evaluations, several side by side. Raises the first cause if one fails."""
    with opened(checkpoint.request, checkpoint.record, Lines(), aside=True) as here:
        return _all(here, wanted)


def promote(checkpoint: Checkpoint) -> GateDecision:
    """Evaluate what the gate compares, and let it decide."""
    with opened(checkpoint.request, checkpoint.record, Lines(), aside=True) as here:
        _all(here, list(gate.gate_evaluations(here, checkpoint.ref, checkpoint.weights, checkpoint.start)))
        decision = gate.promote(here, checkpoint.ref, checkpoint.weights, checkpoint.start)
        return decision or _raise(here)


def _all(here: Session, wanted: list[Evaluation]) -> list[EvaluationReport]:
    with ThreadPoolExecutor(here.request.config.evaluation.workers) as pool:
        try:
            found = list(pool.map(lambda e: evaluations.evaluate(here, e), wanted))
        except BaseException:
            here.stop.set()
            raise
    return [report or _raise(here) for report in found]


def _raise(here: Session) -> NoReturn:
    raise here.cause or RunStopped("stopped")
