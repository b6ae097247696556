"""A checkpoint that was named as RUN or RUN@STEP, with the request of its run."""

from dataclasses import dataclass

from schemas.errors import RequestError
from schemas.manifest import RunManifest, WeightsRef
from storage.audit_runs import find_checkpoint
from storage.expired import check_weights
from storage.objects import ObjectMissing, ObjectStore
from tasks.record import existing_run
from tasks.request import Request, check_run_name, from_record


@dataclass(frozen=True)
class Checkpoint:
    """What the checkpoint's policy is, and where its RL stage started."""

    ref: str
    weights: WeightsRef
    start: WeightsRef
    request: Request
    record: RunManifest


def split(text: str) -> tuple[str, int | None]:
    """RUN and STEP of `RUN[@STEP]`."""
    run, at, step = text.partition("@")
    if at and not step.isdecimal():
        raise RequestError(f"`{text}` is not of the form RUN or RUN@STEP")
    return check_run_name(run), int(step) if at else None


def find(store: ObjectStore, text: str, folder: str = "") -> Checkpoint:
    """The named checkpoint (the newest where no step is given); RequestError if there is none or it has expired.

    `folder`: where the user's modules lie on this machine (default: where the run has them).
    """
    run, step = split(text)
    manifest = find_checkpoint(store, run, step)[1]
    check_weights(store, manifest.policy)
    record = existing_run(store, run)
    try:
        request = from_record(store, record, folder)
    except ObjectMissing as error:
        raise RequestError(f"run `{run}` can't be evaluated: {error}") from error
    return Checkpoint(f"{run}@{manifest.step}", manifest.policy, manifest.initial, request, record)
