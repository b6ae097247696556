"""One part of a catalog: a run of consecutive ledger records as Parquet, joined with what the shards say of each row.

A part is a copy. It names the digest of every record that it covers and of the one before them, so that a reader can
tell whether the ledger still is what was copied.
"""

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from schemas import ledger
from schemas.version import SCHEMA_VERSION

FACTS = pa.schema(
    [
        ("status", pa.string()),
        ("reward", pa.float32()),
        ("length", pa.int32()),
        ("sampled", pa.int32()),
        ("oldest", pa.int32()),
        ("newest", pa.int32()),
    ]
)
"""What a shard says of a row: tokens in all, tokens that the policy sampled, oldest and newest policy version (-1 where
nothing was sampled). Null where the shard can't be read, and for ledger rows that speak of no trajectory."""

PLACE = pa.schema([("index", pa.int64()), ("line", pa.int32()), ("step", pa.int64())])
"""Ledger index, line in the record, and the record's step."""

COLUMNS = pa.schema([*PLACE, *ledger.COLUMNS, *FACTS])
_KEY = b"headrace.catalog"
_GROUP = 1 << 16
"""Rows that are read together when one of them is looked up."""
_REPEATED = ["kind", "worker", "task_id", "disposition", "status", "reason"]


class BadPart(Exception):
    """The bytes are no catalog part of this schema version; the words say why."""


@dataclass(frozen=True)
class RecordNote:
    """What a catalog keeps of a record beside its rows."""

    digest: str
    kind: str
    step: int


@dataclass(frozen=True)
class Part:
    """The records `first` to `end` - 1 of one stage's ledger."""

    first: int
    previous: str
    """Digest of the record before `first`; empty at the start."""
    records: tuple[RecordNote, ...]
    table: pa.Table
    """Their rows with `COLUMNS`, by (index, line)."""

    @property
    def end(self) -> int:
        return self.first + len(self.records)

    @property
    def head(self) -> str:
        return self.records[-1].digest if self.records else self.previous


def encode(part: Part) -> bytes:
    """The part as a Parquet file."""
    notes = {
        "schema_version": SCHEMA_VERSION,
        "first": part.first,
        "previous": part.previous,
        "head": part.head,
        "records": [[r.digest, r.kind, r.step] for r in part.records],
    }
    table = part.table.replace_schema_metadata({_KEY: json.dumps(notes, separators=(",", ":")).encode()})
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd", use_dictionary=_REPEATED, row_group_size=_GROUP)
    return sink.getvalue().to_pybytes()


@dataclass(frozen=True)
class StoredPart:
    """A part whose rows are read column by column when they are asked for."""

    first: int
    previous: str
    records: tuple[RecordNote, ...]
    data: bytes

    @property
    def end(self) -> int:
        return self.first + len(self.records)

    @property
    def head(self) -> str:
        return self.records[-1].digest if self.records else self.previous

    def read(self, columns: list[str]) -> pa.Table:
        """These columns of all rows."""
        return parquet.read_table(pa.BufferReader(self.data), columns=columns)

    def find(self, column: str, value: str) -> pa.Table:
        """The rows with this value in a column. Of row groups without one only that column is read."""
        file, wanted = parquet.ParquetFile(pa.BufferReader(self.data)), pc.field(column) == value
        found = [
            file.read_row_group(number).filter(wanted)
            for number in range(file.num_row_groups)
            if file.read_row_group(number, columns=[column]).filter(wanted).num_rows
        ]
        return pa.concat_tables(found) if found else COLUMNS.empty_table()


def decode(data: bytes) -> StoredPart:
    """The part in these bytes; BadPart where they are none."""
    try:
        schema = parquet.read_schema(pa.BufferReader(data))
        raw: dict[str, Any] = json.loads((schema.metadata or {})[_KEY])
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise BadPart(f"is no catalog ({error})") from error
    if raw.get("schema_version") != SCHEMA_VERSION or not schema.equals(COLUMNS, check_metadata=False):
        raise BadPart(f"was written by another version of this program ({raw.get('schema_version')})")
    return StoredPart(raw["first"], raw["previous"], tuple(RecordNote(*r) for r in raw["records"]), data)


def ledger_row(raw: dict[str, Any]) -> ledger.LedgerRow:
    """The ledger row in a row of a part."""
    return ledger.LedgerRow(**{name: raw[name] for name in ledger.COLUMNS.names})
