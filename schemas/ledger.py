"""The ledger: one record per optimizer step, written before the step runs, chained by SHA-256.

Made by the learner; eaten by recovery, audits and compaction. A record lists every trajectory that reaches its end at
this step with exactly one disposition, every group that ends, and every shard that could not be read.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

import pyarrow as pa

from schemas import checksum
from schemas.version import SCHEMA_VERSION


class Disposition(StrEnum):
    """The one end of a trajectory."""

    TRAINED = "trained"
    STALE = "stale"
    ZERO_ADVANTAGE = "zero_advantage"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    DUPLICATE = "duplicate"
    SUPERSEDED = "superseded"
    UNUSED = "unused"


class Kind(StrEnum):
    """What a ledger row speaks of."""

    TRAJECTORY = "trajectory"
    GROUP = "group"
    """A group that ends at this step; its disposition is that of its rows, or why it has none."""
    SHARD = "shard"
    """A shard that can't be read; `reason` says why."""


@dataclass(frozen=True)
class LedgerRow:
    """One line of a record. Fields that do not apply to its kind are None."""

    kind: str
    group: int | None = None
    sample: int | None = None
    attempt: int | None = None
    trajectory: str | None = None
    task_id: str | None = None
    worker: str | None = None
    seq: int | None = None
    """The shard's sequence number."""
    row: int | None = None
    """The row's position in the shard."""
    row_digest: str | None = None
    disposition: str | None = None
    position: int | None = None
    """Position in the step's batch, for trained rows."""
    staleness: int | None = None
    """Optimizer updates between the oldest policy that sampled it and the step's last update."""
    in_flight: int | None = None
    """The part of the staleness that arose while the episode ran; the rest arose in the queue."""
    advantage: float | None = None
    weight: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class RecordMetadata:
    """What holds for a whole record; stored as the Arrow schema's metadata."""

    step: int
    kind: str
    """`step`, or `close` for the record that ends a run and makes no update."""
    version: int
    """The policy version before the step: the number of steps applied."""
    updates: int
    """Optimizer updates that the step makes (0: it only ends groups; the version rises by one in any case)."""
    learner: str
    config_digest: str
    prng: str
    """State of the learner's random numbers: seed and counter, as JSON."""
    previous: str
    """SHA-256 of the record before it; empty for the first."""
    parent: str = ""
    """Digest of the weights that version 0 is."""
    figures: dict[str, float] = field(default_factory=dict)
    """What the step before this record measured (`schemas/metrics.py`): it is known only after that step's own record
    is durable."""
    schema_version: int = SCHEMA_VERSION


COLUMNS = pa.schema(
    [
        ("kind", pa.string()),
        ("group", pa.int64()),
        ("sample", pa.int32()),
        ("attempt", pa.int32()),
        ("trajectory", pa.string()),
        ("task_id", pa.string()),
        ("worker", pa.string()),
        ("seq", pa.int64()),
        ("row", pa.int32()),
        ("row_digest", pa.string()),
        ("disposition", pa.string()),
        ("position", pa.int32()),
        ("staleness", pa.int32()),
        ("in_flight", pa.int32()),
        ("advantage", pa.float32()),
        ("weight", pa.float32()),
        ("reason", pa.string()),
    ]
)
_METADATA = b"headrace.record"


@dataclass(frozen=True)
class Record:
    """A ledger record: metadata and rows."""

    metadata: RecordMetadata
    rows: tuple[LedgerRow, ...]

    def trained(self) -> list[LedgerRow]:
        """The trained rows in batch order."""
        rows = [r for r in self.rows if r.disposition == Disposition.TRAINED and r.kind == Kind.TRAJECTORY]
        return sorted(rows, key=lambda r: r.position or 0)

    def ended_groups(self) -> list[int]:
        return [r.group for r in self.rows if r.kind == Kind.GROUP and r.group is not None]


def encode(record: Record) -> bytes:
    """The record as an Arrow IPC file; deterministic, so that its SHA-256 can be chained."""
    table = pa.table(_columns(record.rows), schema=COLUMNS.with_metadata(_metadata(record.metadata)))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return checksum.stamp(sink.getvalue().to_pybytes())


def decode(data: bytes) -> Record:
    """The record in these bytes. ValueError, with the reason, where they are none of this schema version."""
    metadata, table = decode_table(data)
    return Record(metadata, tuple(LedgerRow(**r) for r in table.to_pylist()))


def decode_table(data: bytes) -> tuple[RecordMetadata, pa.Table]:
    """A record as a table of `COLUMNS`, for readers of many records. ValueError as `decode`."""
    try:
        file = pa.ipc.open_file(pa.py_buffer(data))
        raw: dict[str, Any] = json.loads((file.schema.metadata or {})[_METADATA])
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise ValueError(f"is no ledger record ({error})") from error
    if raw.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"was written with schema version {raw.get('schema_version')}, this program reads {SCHEMA_VERSION}"
        )
    if not checksum.holds(data, file.schema.metadata):
        raise ValueError("is damaged: its checksum does not fit")
    try:
        metadata, table = RecordMetadata(**raw), file.read_all()
    except TypeError as error:
        raise ValueError(f"has fields that this schema version does not know ({error})") from error
    if not table.schema.equals(COLUMNS, check_metadata=False):
        raise ValueError("has columns that this schema version does not know")
    return metadata, table


def record_digest(data: bytes) -> str:
    """SHA-256 of a record's bytes: what the next record names as `previous`."""
    return hashlib.sha256(data).hexdigest()


def _columns(rows: Sequence[LedgerRow]) -> dict[str, list[Any]]:
    return {f.name: [getattr(r, f.name) for r in rows] for f in fields(LedgerRow)}


def _metadata(metadata: RecordMetadata) -> dict[bytes, bytes]:
    text = json.dumps(asdict(metadata), sort_keys=True, separators=(",", ":"))
    return {_METADATA: text.encode(), checksum.KEY: checksum.BLANK}
