"""Which evaluations a run still wants once it has a candidate: the reported ones and the gate's."""

from tasks.promote import gate_evaluations
from tasks.session import Session
from tasks.survey import Evaluation


def evaluations(session: Session) -> dict[str, Evaluation]:
    """Key → evaluation; the gate's only while it has not decided."""
    found = session.survey()
    wanted = list(found.evaluations)
    if found.rl.weights is not None and found.rl.parent is not None and found.decision is None:
        wanted += gate_evaluations(session, found.rl.ref, found.rl.weights, found.rl.parent)
    return {e.key: e for e in wanted}
