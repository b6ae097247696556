"""One firing of a schedule: a run of its own, named after the scheduled time, starting from the champion.

The schedule's lease in the store lets one firing work at a time; another one ends at once and says so. A firing first
finishes what dead firings have left.
"""

import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from prefect import runtime
from prefect.states import Cancelled, Failed

from flows import driver, flow_runs, lines, takeover
from schemas import keys
from schemas.config import Run
from schemas.config_text import check
from schemas.errors import HeadraceError, RunStopped
from schemas.manifest import RunManifest
from storage.objects import ObjectStore
from storage.open import open_store
from tasks import record, session, worker_pool
from tasks.initial import read_champion
from tasks.lease import LeaseTaken, hold
from tasks.request import build, home, root_url
from tasks.start import check_start

WHERE = "the deployment's configuration"


def fire(config: Any, folder: str, root: str, run: str, schedule: str) -> Any:
    """Open the firing's run and drive it; returns `finished`, or a state of Prefect's.

    Cancelled where another firing, or another driver, is at work; Failed, with the sentence, for every cause that
    stopped the run or refused it.
    """
    try:
        return _fire(check(config, WHERE), home(folder), root, run, schedule)
    except HeadraceError as error:
        return Failed(message=str(error))


def _fire(config: Run, folder: Path, root: str, run: str, schedule: str) -> Any:
    store = open_store(root_url(root, config, folder))
    name = run or _name(store, schedule or config.name)
    lease = None
    with ExitStack() as stack:
        try:
            if schedule:
                key = keys.schedule_lease(schedule)
                lease = stack.enter_context(hold(store, key, f"the schedule {schedule}", run=name, on_lost=_lost))
                takeover.finish_dead(store, schedule, name, lease)
            request = build(_config(store, config, name), folder, store, name)
            check_start(request)
            worker_pool.check(request.config)
            manifest = record.prepare(request, schedule=schedule)
            stack.enter_context(takeover.kept_open(store, name))
            stack.enter_context(session.opened(request, manifest, lines.Lines()))
        except LeaseTaken as error:
            return Cancelled(message=f"this firing ({name}) was refused: {error}")
        if lease is not None and lease.lost:  # while no session was open that `_lost` could stop
            raise RunStopped(takeover.LOST)
        return driver.drive(name)


def _config(store: ObjectStore, config: Run, name: str) -> Run:
    """What a firing runs: from the champion if there is one. Fired again, it keeps what it started with."""
    standing = record.read_run(store, name)
    if standing is not None:
        return check(standing.config, keys.run_manifest(name))
    if read_champion(store, config) is None:
        return config
    return config.model_copy(update={"model": config.model.model_copy(update={"path": "champion"})})


def _name(store: ObjectStore, schedule: str) -> str:
    """The run's name, from the scheduled time. A flow run that is tried again has the run that it opened."""
    time = runtime.flow_run.scheduled_start_time.strftime("%Y%m%dT%H%M%S")
    names = (f"{schedule}-{time}" + (f"-{number}" if number > 1 else "") for number in itertools.count(1))
    return next(name for name in names if _is_ours(record.read_run(store, name)))


def _is_ours(standing: RunManifest | None) -> bool:
    return standing is None or standing.flow_runs[:1] == (flow_runs.own_id(),)


def _lost() -> None:
    """The process stood still for longer than the lease: another firing believes it dead."""
    session.fail_all(RunStopped(takeover.LOST))
