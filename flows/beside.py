"""Work on a checkpoint beside its run, without a flow: evaluations, and the gate, which holds the run's lease."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NoReturn

from schemas import config_text, keys
from schemas.errors import RunStopped
from schemas.evaluation import EvaluationReport
from schemas.promotion import GateDecision
from tasks import evaluate as evaluations
from tasks import gate
from tasks import promote as promotion
from tasks.checkpoints import Checkpoint
from tasks.figures import Evaluation
from tasks.gate import Case
from tasks.promote import Ask
from tasks.request import Request
from tasks.session import Session, Sink, opened
from tasks.survey import gate_key


def evaluate(checkpoint: Checkpoint, wanted: list[Evaluation], sink: Sink) -> list[EvaluationReport]:
    """Make the evaluations, several side by side, also of a run that trains. Raises the first cause if one fails."""
    return _all(Session(checkpoint.request, checkpoint.record, sink), wanted)


def promote(checkpoint: Checkpoint, ask: Ask, channel: str | None, sink: Sink) -> GateDecision:
    """Evaluate what the gate compares, and let it decide anew, for the run's channel or another one."""
    request = checkpoint.request if channel is None else _to_channel(checkpoint.request, channel)
    with opened(request, checkpoint.record, sink, aside=True) as here:
        case = Case(here, checkpoint.ref, checkpoint.weights, checkpoint.start)
        gate.check_case(case)
        _all(here, gate.evaluations(case))
        return promotion.promote(case, ask, anew=True) or _raise(here)


def gate_base(checkpoint: Checkpoint, channel: str | None = None) -> str:
    """The folder of what the gate finds about the checkpoint."""
    request = checkpoint.request if channel is None else _to_channel(checkpoint.request, channel)
    return keys.gate(request.run, gate_key(request, checkpoint.weights))


def _to_channel(request: Request, channel: str) -> Request:
    raw = request.config.model_dump(mode="json")
    raw["promotion"]["channel"] = channel
    return replace(request, config=config_text.check(raw, f"--channel {channel}"))


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
