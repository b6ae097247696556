"""What is due of a run: the evaluations that its configuration asks for, minus the reports that exist.

It follows from the store alone, so no message that was missed loses one, and nothing that is made is made again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas import keys
from schemas.errors import RequestError
from schemas.manifest import RLSpec, RunManifest
from storage.documents import read_document
from storage.objects import ObjectMissing, ObjectStore
from tasks.figures import Evaluation
from tasks.record import existing_run, newest_rl
from tasks.request import Request, from_record
from tasks.survey import survey


@dataclass(frozen=True)
class Due:
    """What is due of one run."""

    request: Request
    record: RunManifest
    spec: RLSpec
    """The RL stage whose checkpoints these are: the run's newest."""
    wanted: tuple[Evaluation, ...]
    expired: tuple[str, ...]
    """Checkpoints whose weights are gone before all their reports were made, in sentences."""


def due(store: ObjectStore, run: str, folder: str = "") -> Due | None:
    """What is due now; None while the run has no RL stage. `folder`: where the user's modules lie on this machine.

    The modules enter by the digest that the stage has recorded, so every machine gets the same answer. RequestError
    where there is no such run or its files can't be read.
    """
    record = existing_run(store, run)
    base = newest_rl(record)
    spec = read_document(store, RLSpec, keys.spec(base)) if base else None
    if spec is None:
        return None
    try:
        request = from_record(store, record, folder, spec.environment_sha256)
    except ObjectMissing as error:
        raise RequestError(f"run `{run}` can't be evaluated: {error}") from error
    found = survey(request, record)
    return Due(request, record, spec, missing(found.evaluations), found.expired)


def missing(evaluations: Sequence[Evaluation]) -> tuple[Evaluation, ...]:
    """Those that have no report."""
    return tuple(e for e in evaluations if e.report is None)
