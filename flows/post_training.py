"""The flow `post_training`: warm-up → N rollout workers ∥ learner → evaluation → promotion.

Prefect orchestrates and shows; what is finished is known from the store's manifests alone. The bodies refer to modules
only, since a served flow may be pickled by value.
"""

from typing import Any, cast

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from flows import driver, firing
from tasks import session


@flow(
    name="post-training",
    persist_result=False,
    validate_parameters=False,
    task_runner=cast(Any, ThreadPoolTaskRunner(max_workers=256)),
)
def post_training(config: dict[str, Any], folder: str, root: str, run: str = "", schedule: str = "") -> Any:
    """Drive one run to its end; returns `finished`, or a state of Prefect's where a firing was refused.

    `config` is the resolved configuration, `folder` its file's folder, `root` the store. A run that this process has
    opened is driven as it is; otherwise (a deployment's firing) it is opened here, named after `schedule` and the
    scheduled time.
    """
    if session.is_open(run):
        return driver.drive(run)
    return firing.fire(config, folder, root, run, schedule)
