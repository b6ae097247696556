"""The life of one trajectory: where it was sampled, how it ended, which checkpoints and promotions descend from it."""

from dataclasses import asdict, dataclass
from typing import Any

from schemas import keys
from schemas.errors import AuditViolation, RequestError
from schemas.ledger import Disposition, Kind, LedgerRow
from schemas.trajectory import Trajectory, row_digest
from storage.audit_checks import row_place
from storage.audit_downstream import downstream
from storage.audit_log import Place, read_log, read_rows
from storage.audit_runs import stages
from storage.audit_taken import warm_ups_that_took
from storage.catalog import open_catalog
from storage.catalog_part import ledger_row
from storage.objects import ObjectStore
from storage.shards import UnreadableShard


@dataclass(frozen=True)
class Descendant:
    """A checkpoint that a trajectory is in."""

    checkpoint: str
    """`RUN@STEP`"""
    rl: str
    weights_sha256: str
    promoted: tuple[str, ...]
    """Channels (`name/channel`) whose history has these weights."""


@dataclass(frozen=True)
class Life:
    """Everything the store knows of one trajectory."""

    id: str
    run: str
    rl: str
    task_id: str
    task_digest: str
    group: int
    sample: int
    attempt: int
    worker: str
    shard: str
    row: int
    row_digest: str
    versions: tuple[int, ...]
    """Policy versions that sampled it, in order."""
    tokens: int
    status: str
    reward: float
    disposition: str
    """Its end, or `pending` (a live run) or `unaccounted` (a closed one)."""
    reason: str
    step: int | None
    """The step whose record has it."""
    position: int | None
    staleness: int | None
    advantage: float | None
    messages: str
    """JSON, for people. Sampled by a model: not to be trusted."""
    descendants: tuple[Descendant, ...]
    warm_ups: tuple[str, ...]
    """Folders of warm-ups that took it from the log."""
    ledger_head: str
    """The head of the ledger that the answer was made from."""
    notes: tuple[str, ...] = ()
    """What a person should know of how the answer was made."""

    def to_json(self) -> dict[str, Any]:
        """What `audit trajectory --json` prints."""
        return asdict(self) | {"promoted": any(d.promoted for d in self.descendants)}


def trajectory(store: ObjectStore, run: str, trajectory_id: str, *, ledger_only: bool = False) -> Life:
    """The life of a trajectory of a run, looked for in the newest RL stage first.

    `ledger_only`: read every ledger record instead of the catalog. Raises RequestError if there is no such id,
    AuditViolation if its shard does not hold what the ledger says or the ledger is broken.
    """
    for base in reversed(stages(store, run)):
        catalog = open_catalog(store, base, ledger_only=ledger_only)
        answer = _Answer(base, catalog.closed, catalog.head, catalog.refused)
        found = catalog.find("trajectory", trajectory_id).slice(0, 1).to_pylist()
        if found:
            return _life(store, answer, found[0]["step"], ledger_row(found[0]))
        for place, fact in read_log(store, base).rows.items():
            if fact.id == trajectory_id:
                return _life(store, answer, None, _without_end(place, fact.digest))
    raise RequestError(f"run `{run}` has no trajectory `{trajectory_id}`: ids are GROUP-SAMPLE-ATTEMPT, such as 0-0-0")


@dataclass(frozen=True)
class _Answer:
    """Where an answer comes from."""

    base: str
    closed: bool
    head: str
    refused: str


def _without_end(place: Place, digest: str) -> LedgerRow:
    worker, seq, row = place
    return LedgerRow(Kind.TRAJECTORY, worker=worker, seq=seq, row=row, row_digest=digest)


def _stored(store: ObjectStore, base: str, entry: LedgerRow) -> Trajectory:
    """The stored row that a ledger row names, if it has that digest."""
    worker, seq, row = row_place(entry)
    key = keys.shard(base, worker, seq)
    try:
        rows = read_rows(store, base, worker, seq)
    except UnreadableShard as error:
        raise AuditViolation(f"{key}, which the ledger names, is {error.reason}") from error
    if row >= len(rows) or row_digest(rows[row]) != entry.row_digest:
        raise AuditViolation(
            f"row {row} of {key} is not the one that the ledger names: the shard or the record was changed"
        )
    return rows[row]


def _life(store: ObjectStore, answer: _Answer, step: int | None, entry: LedgerRow) -> Life:
    row = _stored(store, answer.base, entry)
    worker, seq, place = row_place(entry)
    took = warm_ups_that_took(store, lambda base, one: (base, one.trajectory) == (answer.base, row.id))
    warm_ups = {t.stage: t.weights_sha256 for t in took}
    return Life(
        id=row.id,
        run=row.run,
        rl=answer.base.rsplit("/rl-", 1)[1],
        task_id=row.task_id,
        task_digest=row.task_digest,
        group=row.group,
        sample=row.sample,
        attempt=row.attempt,
        worker=row.worker,
        shard=keys.shard(answer.base, worker, seq),
        row=place,
        row_digest=row_digest(row),
        versions=row.versions,
        tokens=len(row.tokens),
        status=row.status,
        reward=row.reward,
        disposition=entry.disposition or ("unaccounted" if answer.closed else "pending"),
        reason=entry.reason or "",
        step=step,
        position=entry.position,
        staleness=entry.staleness,
        advantage=entry.advantage,
        messages=row.messages,
        descendants=_descendants(store, answer.base, step, entry, frozenset(warm_ups.values())),
        warm_ups=tuple(warm_ups),
        ledger_head=answer.head,
        notes=(answer.refused,) if answer.refused else (),
    )


def _descendants(
    store: ObjectStore, base: str, step: int | None, entry: LedgerRow, warm_ups: frozenset[str]
) -> tuple[Descendant, ...]:
    """Checkpoints of the stage from the step on, then those of runs that started from one of them or from the weights
    of warm-ups that took it."""
    trained = step is not None and entry.disposition == Disposition.TRAINED
    if not trained and not warm_ups:
        return ()
    found = downstream(store, {base: step + 1} if step is not None and trained else {}, warm_ups, policies=False)
    return tuple(Descendant(a.ref, a.rl, a.weights_sha256, a.promoted) for a in found if a.kind == "checkpoint")
