"""Recovery is replay: the newest whole checkpoint, then every ledger record after it, from the stored shards.

Replay publishes nothing. Each policy that was published is compared with what replay gives; in the same numerics
environment they must be equal to the bit.
"""

from collections.abc import Callable
from dataclasses import dataclass

from schemas import keys
from schemas.errors import LogDamaged, RunStopped
from schemas.ledger import LedgerRow
from schemas.manifest import CheckpointManifest, PolicyManifest
from schemas.trajectory import row_digest
from storage.expired import newest_whole
from storage.ledger import Entry, read_entry
from storage.objects import ObjectStore, find
from storage.shards import UnreadableShard, decode_shard
from trainer.assembler import Row
from trainer.progress import Bounds, Place, Progress
from trainer.record import StepRows
from trainer.updater import Updater

REPLAY_TOLERANCE = 1e-3
"""Largest difference of probe log-probs that replay in another numerics environment may show."""


def newest_checkpoint(store: ObjectStore, base: str) -> CheckpointManifest | None:
    """The checkpoint with the highest step whose manifest is there and that has not expired: manifests come last, so
    it is whole."""
    return newest_whole(store, base)


@dataclass
class ShardCache:
    """Rows of the shards that replay touches, read once."""

    store: ObjectStore
    base: str

    def __post_init__(self) -> None:
        self._rows: dict[tuple[str, int], list[Row]] = {}

    def row(self, entry: LedgerRow) -> Row:
        """The stored row that a ledger row names; LogDamaged if it can't be read or is another."""
        if entry.worker is None or entry.seq is None or entry.row is None:
            raise LogDamaged(f"a trained row of the ledger of {self.base} names no shard: run `headrace audit verify`")
        return self.at((entry.worker, entry.seq, entry.row), entry.row_digest)

    def at(self, place: Place, digest: str | None) -> Row:
        """The stored row at a place; LogDamaged if it can't be read or has another digest."""
        worker, seq, number = place
        rows, key = self._shard(worker, seq), keys.shard(self.base, worker, seq)
        if number >= len(rows):
            raise LogDamaged(f"the shard {key} has no row {number}, which the ledger trained: the shard was changed")
        row = rows[number]
        if row.digest != digest:
            raise LogDamaged(f"row {number} of the shard {key} is not the one that was trained: the shard was changed")
        return row

    def _shard(self, worker: str, seq: int) -> list[Row]:
        if (worker, seq) not in self._rows:
            key = keys.shard(self.base, worker, seq)
            stored = find(self.store, key)
            if stored is None:
                raise LogDamaged(f"the shard {key}, which the ledger trained from, is gone: restore it to go on")
            try:
                _, rows = decode_shard(stored.data)
            except UnreadableShard as error:
                raise LogDamaged(
                    f"the shard {key}, which the ledger trained from, is {error.reason}: restore it"
                ) from error
            self._rows[worker, seq] = [Row((worker, seq, i), t, row_digest(t)) for i, t in enumerate(rows)]
        return self._rows[worker, seq]


def replay(
    store: ObjectStore,
    base: str,
    progress: Progress,
    bounds: Bounds,
    apply: Callable[[StepRows, Entry], None],
    until: int | None = None,
) -> int:
    """Apply every record from `progress.index` on, up to the ledger index `until` if one is given.

    `apply` trains on a record's batch. Returns the records replayed; LogDamaged where the log is not what was recorded.
    """
    shards = ShardCache(store, base)
    count = 0
    while until is None or progress.index < until:
        entry = read_entry(store, base, progress.index)
        if entry is None:
            break
        metadata = entry.record.metadata
        if metadata.previous != progress.head:
            raise LogDamaged(
                f"{keys.ledger(base, progress.index)} does not follow the record before it (hash chain broken): "
                f"run `headrace audit verify`"
            )
        trained = entry.record.trained()
        batch = tuple(shards.row(r) for r in trained)
        advantages = tuple(r.advantage or 0.0 for r in trained)
        if metadata.kind == "step":
            apply(StepRows(batch, advantages, entry.record.rows), entry)
        progress.apply(entry.record, entry.digest, bounds)
        count += 1
    return count


def compare(base: str, standing: PolicyManifest, updater: Updater) -> str:
    """The first published policy stands: what replay gives must be it, to the bit in the same numerics environment.

    Returns a remark where it was computed elsewhere and agrees within the tolerance; RunStopped where it does not.
    """
    found = updater.params_digest()
    if found == standing.weights.sha256:
        return ""
    if standing.numerics == updater.numerics():
        raise RunStopped(
            f"replaying {base} gave other weights for policy {standing.version} ({found[:12]}) than were published "
            f"({standing.weights.sha256[:12]}): run `headrace audit verify`, something was changed"
        )
    gap = standing.probe.gap(updater.probe())
    if not gap <= REPLAY_TOLERANCE:
        raise RunStopped(
            f"replaying {base} on another machine gave policy {standing.version} log-probs that are {gap:.1e} off its "
            f"probe, more than {REPLAY_TOLERANCE:g}: resume with the cores, devices and jax version that its manifest "
            f"records"
        )
    return f"policy {standing.version} was replayed within {gap:.1e} of its probe, not to the bit: other cores or jax"
