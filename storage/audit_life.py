"""The life of one trajectory: where it was sampled, how it ended, which checkpoints and promotions descend from it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from schemas import keys
from schemas.errors import AuditViolation, RequestError
from schemas.ledger import Disposition, Kind, LedgerRow
from schemas.manifest import CheckpointManifest
from schemas.trajectory import Trajectory, row_digest
from storage.audit_chain import Chain, Link, read_chain
from storage.audit_checks import row_place
from storage.audit_log import Place, read_log, read_rows
from storage.audit_runs import checkpoints, folders, promotions, read_spec, stages
from storage.objects import ObjectStore, find
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

    def to_json(self) -> dict[str, Any]:
        """What `audit trajectory --json` prints."""
        return asdict(self) | {"promoted": any(d.promoted for d in self.descendants)}


def trajectory(store: ObjectStore, run: str, trajectory_id: str) -> Life:
    """The life of a trajectory of a run, looked for in the newest RL stage first.

    Raises RequestError if there is no such id, AuditViolation if its shard does not hold what the ledger says.
    """
    for base in reversed(stages(store, run)):
        chain = read_chain(store, base, read_spec(store, base))
        for link, row in chain.rows(Kind.TRAJECTORY):
            if row.trajectory == trajectory_id:
                return _life(store, chain, link, row)
        for place, fact in read_log(store, base).rows.items():
            if fact.id == trajectory_id:
                return _life(store, chain, None, _without_end(place, fact.digest))
    raise RequestError(f"run `{run}` has no trajectory `{trajectory_id}`: ids are GROUP-SAMPLE-ATTEMPT, such as 0-0-0")


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


def _life(store: ObjectStore, chain: Chain, link: Link | None, entry: LedgerRow) -> Life:
    row = _stored(store, chain.base, entry)
    worker, seq, place = row_place(entry)
    rl = chain.base.rsplit("/rl-", 1)[1]
    trained = link if entry.disposition == Disposition.TRAINED else None
    return Life(
        id=row.id,
        run=row.run,
        rl=rl,
        task_id=row.task_id,
        task_digest=row.task_digest,
        group=row.group,
        sample=row.sample,
        attempt=row.attempt,
        worker=row.worker,
        shard=keys.shard(chain.base, worker, seq),
        row=place,
        row_digest=row_digest(row),
        versions=row.versions,
        tokens=len(row.tokens),
        status=row.status,
        reward=row.reward,
        disposition=entry.disposition or ("unaccounted" if chain.closed else "pending"),
        reason=entry.reason or "",
        step=link.record.metadata.step if link else None,
        position=entry.position,
        staleness=entry.staleness,
        advantage=entry.advantage,
        messages=row.messages,
        descendants=tuple(_descendants(store, chain.base, trained)) if trained else (),
    )


def _descendants(store: ObjectStore, base: str, link: Link) -> Iterator[Descendant]:
    """Checkpoints of the stage after the record, then every checkpoint of runs that started from one of them."""
    promoted = promotions(store)
    seen: set[str] = set()
    waiting = [(base, [c for c in checkpoints(store, base) if c.ledger_index > link.index])]
    children = _children(store)
    while waiting:
        base, found = waiting.pop(0)
        seen.add(base)
        for manifest in found:
            yield _descendant(base, manifest, promoted)
        digests = {c.policy.sha256 for c in found}
        for child, initial in children.items():
            if initial in digests and child not in seen and child not in {b for b, _ in waiting}:
                waiting.append((child, checkpoints(store, child)))


def _descendant(base: str, manifest: CheckpointManifest, promoted: dict[str, list[str]]) -> Descendant:
    run, rl = base.removeprefix("runs/").split("/rl-", 1)
    sha256 = manifest.policy.sha256
    return Descendant(f"{run}@{manifest.step}", rl, sha256, tuple(promoted.get(sha256, ())))


def _children(store: ObjectStore) -> dict[str, str]:
    """Every RL stage in the store → the digest of the weights that it started from."""
    bases = [
        f"runs/{run}/{name}"
        for run in folders(store, "runs/")
        for name in folders(store, f"runs/{run}/")
        if name[:3] == "rl-"
    ]
    return {b: read_spec(store, b).initial.sha256 for b in bases if find(store, keys.spec(b)) is not None}
