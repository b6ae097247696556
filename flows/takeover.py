"""Runs of a schedule whose driver died: the next firing takes them over and finishes them, before its own run.

Dead is a run that says it is running while nobody renews its lease. One that a person stopped, or that failed with a
cause, says so itself and is left alone.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager

from prefect import get_run_logger

from flows import driver, flow_runs, lines
from schemas import keys
from schemas.errors import HeadraceError, RunStopped
from schemas.manifest import RunManifest
from storage.audit_runs import folders
from storage.objects import ObjectStore
from tasks import record, session, worker_pool
from tasks.lease import HeldLease, LeaseTaken, hold
from tasks.request import from_record

LIMIT = 3
"""Takeovers of one run. A run that outlives no driver is given up."""
LOST = "another firing of the schedule has taken over: this one stops"


def finish_dead(store: ObjectStore, schedule: str, own: str, lease: HeldLease) -> None:
    """Drive every dead run of the schedule but `own` to its end. RunStopped once the schedule's lease is lost."""
    for manifest in list(unfinished(store, schedule)):
        if manifest.run != own:
            _finish(store, manifest)
        if lease.lost:
            raise RunStopped(LOST)


def unfinished(store: ObjectStore, schedule: str) -> Iterator[RunManifest]:
    """Runs of the schedule that say they are running, oldest first. Their names begin with the schedule's."""
    for rest in folders(store, f"{keys.run(schedule)}-"):
        manifest = record.read_run(store, f"{schedule}-{rest}")
        if manifest is not None and manifest.schedule == schedule and manifest.state == "running":
            yield manifest


def _finish(store: ObjectStore, manifest: RunManifest) -> None:
    run, log = manifest.run, get_run_logger()
    try:
        taken = take(store, run)
        if taken is None:
            return
        log.info("taking over run %s, whose driver died (takeover %d of %d)", run, taken.takeovers, LIMIT)
        earlier = [i for i in taken.flow_runs if i != flow_runs.own_id()]
        flow_runs.mark_crashed(earlier, f"its process died; the flow run {flow_runs.own_id()} goes on with run {run}")
        request = from_record(store, taken)
        worker_pool.check(request.config)
        with kept_open(store, run), session.opened(request, record.prepare(request), lines.Lines()):
            driver.drive(run)
    except LeaseTaken as error:
        log.info("run %s is not dead: %s", run, error)
    except HeadraceError as error:
        log.warning("run %s was taken over and could not be finished: %s", run, error)


def take(store: ObjectStore, run: str) -> RunManifest | None:
    """Count a takeover of a run that may be dead. None where it has ended, or has had its takeovers and is given up.

    LeaseTaken where somebody drives it.
    """
    with hold(store, keys.run_lease(run), f"run {run}", run=run):
        manifest = record.read_run(store, run)
        if manifest is None or manifest.state != "running":
            return None
        if manifest.takeovers >= LIMIT:
            again = f"headrace run CONFIG --run {run}"
            if manifest.config["model"]["path"] == "champion":  # as a firing has it, whatever CONFIG says
                again += " --set model.path=champion"
            reason = f"its driver died and so did those of {LIMIT} takeovers: `{again}` tries again"
            record.change(store, run, state="failed", reason=reason)
            return None
        return record.change(store, run, takeovers=manifest.takeovers + 1)


@contextmanager
def kept_open(store: ObjectStore, run: str) -> Generator[None]:
    """Leave the run to the next firing where this process is ended, but nobody has cancelled its flow run.

    That is the end of a Prefect worker or of `serve`, or of their machine: a pause, and no person's wish about the run.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        manifest = record.read_run(store, run)
        if manifest is not None and manifest.state == "stopped" and not flow_runs.was_cancelled():
            record.change(store, run, state="running", reason=f"its process was ended ({type(error).__name__})")
        raise
