"""Evaluation beside training: checkpoints that are due are played one at a time while the learner is at work.

A failure is told and ends nothing. Whatever is still due when RL has ended is made then, before the gate.
"""

from schemas.errors import HeadraceError
from tasks.evaluate import play, source
from tasks.figures import Evaluation
from tasks.session import Session

NICENESS = 10
"""The learner and the workers go first where processor cores are short."""


def evaluate_alongside(session: Session) -> int:
    """Make what is due until RL ends; returns how many were made. One that is being played then is finished."""
    tried: set[str] = set()
    made = 0
    while not (session.stop.is_set() or session.learned.is_set()):
        session.committed.clear()
        wanted = next((e for e in session.survey().evaluations if e.report is None and e.key not in tried), None)
        if wanted is None:
            _wait(session)
        else:
            tried.add(wanted.key)
            made += _play(session, wanted)
    return made


def _wait(session: Session) -> None:
    """Until a checkpoint is committed, RL ends or everything stops."""
    while not (session.stop.is_set() or session.learned.is_set() or session.committed.wait(0.2)):
        pass


def _play(session: Session, wanted: Evaluation) -> bool:
    try:
        return play(session, wanted, niceness=NICENESS) is not None
    except HeadraceError as error:
        message = f"{error}; training goes on, and it is looked at again when RL has ended"
        session.tell(source(wanted), {"event": "log", "message": message})
        return False
