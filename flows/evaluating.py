"""The flow `evaluate-run`: evaluators of a work pool make what is due of runs that are driven elsewhere.

A run's event fires it for every checkpoint that is to be evaluated; on a schedule or by hand it picks up whatever is
due. What is due is read from the store, so firings may be missed, repeated or overlap.
"""

import threading
from typing import Any

from prefect import flow, get_run_logger
from prefect.states import Failed

from flows import deployments, worker_lines
from schemas import errors
from storage import audit_runs
from storage import open as stores
from tasks import announce, evaluator, request


@flow(name="evaluate-run", persist_result=False)
def evaluate_run(root: str = "", run: str = "", folder: str = "") -> Any:
    """Make what is due; returns how much was made, or a failed state with the first cause.

    `root` is the store (default: HEADRACE_ROOT), `run` the run to look at (default: every run of the store), `folder`
    where the user's modules lie on this machine (default: HEADRACE_FOLDER, else where the run has them).
    """
    sink = worker_lines.WorkerLines(get_run_logger().info)
    try:
        store = stores.open_store(request.root_url(root))
        runs = [run] if run else list(audit_runs.folders(store, "runs/"))
        tally = evaluator.Evaluator(store, sink=sink, stop=threading.Event(), folder=folder).run(runs)
        tally.check()
        return str(tally)
    except errors.HeadraceError as error:
        return Failed(message=str(error))


def trigger(name: str) -> Any:
    """Fires the deployment of this name when one of its runs has committed a checkpoint that is to be evaluated."""
    from prefect.events import DeploymentEventTrigger

    return DeploymentEventTrigger(
        name=f"{name} for checkpoints",
        expect={announce.EVENT},
        match={"prefect.resource.id": announce.resource("*"), announce.LABEL: name},
        parameters={"root": "{{ event.payload.root }}", "run": "{{ event.payload.run }}"},
    )


def deployment(work_pool: str | None, root: str, name: str = "evaluate-run/headrace", schedules: Any = None) -> Any:
    """The deployment of this flow, named as `evaluation.deployment` names it; None: no work pool, it is served.

    On its schedule it looks at every run of `root`; fired by an event, at the run that the event is of.
    """
    return deployments.of(
        evaluate_run,
        deployments.own_name(evaluate_run, name, "evaluation.deployment"),
        work_pool,
        description="Evaluates checkpoints of runs whose evaluation.infrastructure is deployment",
        parameters={"root": root},
        schedules=schedules or [],
        triggers=[trigger(name)],
    )
