"""Which evaluations a run still wants once it has a candidate: the reported ones and the gate's."""

from tasks import gate, promote
from tasks.figures import Evaluation
from tasks.gate import Case
from tasks.session import Session


def candidate(session: Session) -> Case | None:
    """What the gate is to decide on: where the run's RL ended."""
    rl = session.survey().rl
    return None if rl.weights is None or rl.parent is None else Case(session, rl.ref, rl.weights, rl.parent)


def evaluations(session: Session) -> dict[str, Evaluation]:
    """Key → evaluation; the gate's only while it has to decide."""
    wanted = list(session.survey().evaluations)
    case = candidate(session)
    if case is not None and promote.standing_decision(case) is None:
        wanted += gate.evaluations(case)
    return {e.key: e for e in wanted}
