"""One firing of a schedule: a run of its own, named after the scheduled time, starting from the champion.

The schedule's lease in the store lets one firing work at a time; another one ends at once and says so.
"""

from contextlib import ExitStack
from typing import Any

from prefect import runtime
from prefect.states import Cancelled

from flows import driver, lines
from schemas import keys
from schemas.config_text import check
from storage.objects import ObjectStore
from storage.open import open_store
from tasks import record, session, worker_pool
from tasks.initial import check_initial, read_champion
from tasks.lease import LeaseTaken, hold
from tasks.request import from_plain


def fire(config: dict[str, Any], folder: str, root: str, run: str, schedule: str) -> Any:
    """Open the firing's run and drive it. A Cancelled state where another firing, or another driver, is at work."""
    store = open_store(root)
    name = run or f"{schedule or config['name']}-{_scheduled_time()}"
    with ExitStack() as stack:
        try:
            if schedule:
                stack.enter_context(hold(store, keys.schedule_lease(schedule), f"the schedule {schedule}", run=name))
            request = from_plain(_config(store, config, name), folder, root, name)
            check_initial(request)
            worker_pool.check(request.config.rollout)
            manifest = record.prepare(request, schedule=schedule)
            stack.enter_context(session.opened(request, manifest, lines.Lines()))
        except LeaseTaken as error:
            return Cancelled(message=f"this firing ({name}) was refused: {error}")
        return driver.drive(name)


def _config(store: ObjectStore, config: dict[str, Any], name: str) -> dict[str, Any]:
    """What a firing runs: from the champion if there is one. Fired again, it keeps what it started with."""
    standing = record.read_run(store, name)
    if standing is not None:
        return standing.config
    if read_champion(store, check(config, "the deployment's configuration")) is None:
        return config
    return {**config, "model": {**config["model"], "path": "champion"}}


def _scheduled_time() -> str:
    return runtime.flow_run.scheduled_start_time.strftime("%Y%m%dT%H%M%S")
