"""The flow `post_training`: warm-up → N rollout workers ∥ learner → evaluation → promotion.

Prefect orchestrates and shows; what is finished is known from the store's manifests alone. The bodies refer to modules
only, since a served flow may be pickled by value.
"""

from typing import Any, cast

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from flows import driver, firing
from schemas.config import Run
from tasks import session


@flow(
    name="post-training",
    persist_result=False,
    validate_parameters=False,
    task_runner=cast(Any, ThreadPoolTaskRunner(max_workers=256)),
)
def post_training(config: Run, folder: str = "", root: str = "", run: str = "", schedule: str = "") -> Any:
    """Drive one run to its end; returns `finished`, or a state of Prefect's where a firing was refused or failed.

    `config` is the whole configuration: Prefect shows it as a form and checks what it is given against the form. Rules
    across settings are checked here, so that a wrong configuration is one sentence. `folder` is where relative paths
    begin (default: HEADRACE_FOLDER, else the working folder), `root` the store (default: HEADRACE_ROOT, else the
    configuration's), `run` the run's name (default: the schedule and the scheduled time).

    A run that this process has opened is driven as it is; otherwise (a firing of a deployment) it is opened here.
    """
    if session.is_open(run):
        return driver.drive(run)
    return firing.fire(config, folder, root, run, schedule)
