"""A checkpoint that is to be evaluated was committed: whoever evaluates is told.

The learner's events say when. Truth is the store: a message that is lost costs time and no evaluation.
"""

from schemas.config import Run
from tasks.children import Event
from tasks.planned import stride
from tasks.session import Session

EVENT = "headrace.checkpoint.committed"
LABEL = "headrace.deployment"
"""Label of the event's resource that names the deployment of evaluators which it is for."""


def note(session: Session, event: Event) -> None:
    """Take an event of the learner's. It speaks of a step when that step's checkpoint is committed."""
    every, step = stride(session.request.config), event.get("step")
    if event["event"] in ("step", "recovered") and every and step and step % every == 0:
        session.committed.set()
        if session.request.config.evaluation.infrastructure == "deployment":
            emit(session.request.config, session.store.url, session.request.run, step)


def resource(run: str) -> str:
    """How Prefect calls the run whose checkpoint it is."""
    return f"headrace.run.{run}"


def emit(config: Run, root: str, run: str, step: int) -> None:
    """Send Prefect's event. It is queued and sent by a thread of Prefect's, which logs what it can't send."""
    from prefect.events import emit_event

    labels = {"prefect.resource.id": resource(run), "prefect.resource.name": run}
    labels[LABEL] = config.evaluation.deployment
    emit_event(EVENT, labels, payload={"run": run, "step": step, "root": root})
