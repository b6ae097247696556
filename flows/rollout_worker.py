"""The flow `rollout-worker`: workers of a work pool join a run that is driven elsewhere, by the store alone.

The driver asks for it where `rollout.infrastructure = "deployment"`; anybody may start more of them or cancel some.
"""

import threading
from typing import Annotated, Any

from prefect import flow, get_run_logger
from prefect.states import Failed
from pydantic import Field

from flows import deployments, worker_lines
from schemas import errors
from storage import open as stores
from tasks import join


@flow(name="rollout-worker", persist_result=False)
def rollout_worker(
    root: str,
    run: str,
    base: str = "",
    workers: Annotated[int, Field(ge=1)] = 1,
    first: int | None = None,
    folder: str = "",
) -> Any:
    """Keep workers at a run until its RL ends; returns why they left, or a failed state with the cause.

    `root` is the store, `base` an RL stage of the run (default: its newest), `first` the number of the first worker,
    `folder` where the user's modules lie on this machine (default: HEADRACE_FOLDER, else where the run has them).
    """
    sink = worker_lines.WorkerLines(get_run_logger().info)
    try:
        return join.join(
            stores.open_store(root),
            run,
            sink=sink,
            stop=threading.Event(),
            base=base,
            workers=workers,
            first=first,
            folder=folder,
        )
    except errors.HeadraceError as error:
        return Failed(message=str(error))


def deployment(work_pool: str | None, name: str = "rollout-worker/headrace") -> Any:
    """The deployment of this flow, named as `rollout.deployment` names it; None: no work pool, it is served."""
    return deployments.of(
        rollout_worker,
        deployments.own_name(rollout_worker, name, "rollout.deployment"),
        work_pool,
        description="Rollout workers for runs whose rollout.infrastructure is deployment",
    )
