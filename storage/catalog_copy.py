"""Copying the ledger into catalog form: records as they stand in the store, joined with the facts of their shards."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas import keys, ledger
from schemas.digest import sha256
from schemas.errors import AuditViolation, RunStopped
from schemas.ledger import RecordMetadata, record_digest
from storage.catalog_part import COLUMNS, FACTS, PLACE, BadPart, Part, RecordNote, decode, encode
from storage.objects import ObjectStore, find
from storage.shards import UnreadableShard, decode_table

_NAME = re.compile(r"(\d{8})-(\d{8})-([0-9a-f]{16})\.parquet")
_JOIN = ["worker", "seq", "row"]
_MERGED = 8
"""So many small parts are merged: a long run has few parts, and each row is written a few times."""


@dataclass(frozen=True, order=True)
class PartName:
    """What the key of a part says: its records and the digest of its bytes."""

    first: int
    end: int
    sha256: str

    def key(self, base: str) -> str:
        return keys.catalog_part(base, self.first, self.end, self.sha256)


def copy_records(
    store: ObjectStore, base: str, first: int, previous: str, *, facts: bool, end: int | None = None
) -> Part:
    """The records from ledger index `first` to `end` - 1 (None: to the head), which must follow the record `previous`.

    With `facts`, each shard that they name is read once. Raises AuditViolation where the hash chain does not hold.
    """
    notes, tables, head = [], [], previous
    for index, data in _records(store, base, first, end):
        metadata, table = _decoded(base, index, data)
        if metadata.previous != head:
            raise AuditViolation(
                f"the ledger of {base} has no record {metadata.previous[:12] or 'before its first'}, which "
                f"{keys.ledger(base, index)} names as the one before it: one of them was changed or removed"
            )
        head = record_digest(data)
        notes.append(RecordNote(head, metadata.kind, metadata.step))
        tables.append(_placed(table, index, metadata))
    rows = pa.concat_tables(tables) if tables else pa.schema([*PLACE, *ledger.COLUMNS]).empty_table()
    return Part(first, previous, tuple(notes), _with_facts(store, base, rows) if facts else _without(rows))


def compact(store: ObjectStore, base: str) -> int:
    """Add a part with the records that no part covers yet; returns how many there were.

    Trusts the names of the parts that are there: readers check what they hold.
    """
    names = covered(part_names(store, base))
    first = names[-1].end if names else 0
    before = find(store, keys.ledger(base, first - 1)) if first else None
    if first and before is None:
        raise AuditViolation(f"the catalog of {base} covers more records than its ledger has: some were removed")
    part = copy_records(store, base, first, record_digest(before.data) if before else "", facts=True)
    _keep(store, base, part)
    while len(small := _small(covered(part_names(store, base)))) >= _MERGED:
        _merge(store, base, small)
    return len(part.records)


def _small(names: list[PartName]) -> list[PartName]:
    """The last parts that have no more records than the newest: eight of them become one, eight of those one again."""
    limit = names[-1].end - names[-1].first if names else 0
    return list(takewhile(lambda name: name.end - name.first <= limit, reversed(names)))[::-1]


def _merge(store: ObjectStore, base: str, names: list[PartName]) -> None:
    """One part with the records of several; those stay, since an audit may be reading them."""
    try:
        parts = [decode(store.get(name.key(base)).data) for name in names]
    except BadPart as error:
        raise RunStopped(f"a part of the catalog of {base} {error}: build it anew") from error
    table = pa.concat_tables([p.read(COLUMNS.names).replace_schema_metadata() for p in parts])
    _keep(store, base, Part(parts[0].first, parts[0].previous, tuple(n for p in parts for n in p.records), table))


def rebuild(store: ObjectStore, base: str) -> Part:
    """Copy the whole ledger anew into one part and remove the others, which are copies too."""
    part = copy_records(store, base, 0, "", facts=True)
    kept = _keep(store, base, part)
    for name in part_names(store, base):
        if name.end <= part.end and name.key(base) != kept:
            store.delete(name.key(base))
    return part


def part_names(store: ObjectStore, base: str) -> list[PartName]:
    """Every stored part, sorted."""
    prefix = f"{keys.catalog(base)}/"
    found = (_NAME.fullmatch(key.removeprefix(prefix)) for key in store.list(prefix))
    return sorted(PartName(int(m[1]), int(m[2]), m[3]) for m in found if m)


def covered(names: list[PartName]) -> list[PartName]:
    """The fewest parts that follow each other from record 0 on."""
    chosen: list[PartName] = []
    at = 0
    while fitting := [name for name in names if name.first == at < name.end]:
        chosen.append(max(fitting, key=lambda name: name.end))
        at = chosen[-1].end
    return chosen


def _keep(store: ObjectStore, base: str, part: Part) -> str:
    """Store a part unless it is empty; returns its key."""
    if not part.records:
        return ""
    data = encode(part)
    key = keys.catalog_part(base, part.first, part.end, sha256(data))
    store.put(key, data)
    return key


def _records(store: ObjectStore, base: str, first: int, end: int | None) -> Iterator[tuple[int, bytes]]:
    index = first
    while end is None or index < end:
        stored = find(store, keys.ledger(base, index))
        if stored is None:
            return
        yield index, stored.data
        index += 1


def _decoded(base: str, index: int, data: bytes) -> tuple[RecordMetadata, pa.Table]:
    try:
        return ledger.decode_table(data)
    except ValueError as error:
        raise AuditViolation(f"{keys.ledger(base, index)} {error}") from error


def _placed(table: pa.Table, index: int, metadata: RecordMetadata) -> pa.Table:
    count = table.num_rows
    place = [np.full(count, index), np.arange(count, dtype=np.int32), np.full(count, metadata.step)]
    return pa.table([*map(pa.array, place), *table.columns], schema=pa.schema([*PLACE, *ledger.COLUMNS]))


def _without(rows: pa.Table) -> pa.Table:
    nulls = [pa.nulls(rows.num_rows, field.type) for field in FACTS]
    return pa.table([*rows.columns, *nulls], schema=COLUMNS)


def _with_facts(store: ObjectStore, base: str, rows: pa.Table) -> pa.Table:
    named = rows.filter(pc.field("kind") == ledger.Kind.TRAJECTORY).select(["worker", "seq"])
    shards = named.group_by(["worker", "seq"]).aggregate([]).to_pylist() if named.num_rows else []
    facts = [f for shard in shards if (f := _facts(store, base, shard["worker"], shard["seq"])) is not None]
    if not facts:
        return _without(rows)
    joined = rows.join(pa.concat_tables(facts), keys=_JOIN, join_type="left outer")
    return joined.select(COLUMNS.names).sort_by([("index", "ascending"), ("line", "ascending")]).cast(COLUMNS)


def _facts(store: ObjectStore, base: str, worker: str | None, seq: int | None) -> pa.Table | None:
    """The facts of a shard's rows with their places; None where the shard is missing or can't be read."""
    stored = find(store, keys.shard(base, worker, seq)) if worker is not None and seq is not None else None
    if stored is None:
        return None
    try:
        _, table = decode_table(stored.data)
    except UnreadableShard:
        return None
    count = table.num_rows
    columns = {
        "worker": pa.array([worker] * count, pa.string()),
        "seq": pa.array(np.full(count, seq), pa.int64()),
        "row": pa.array(np.arange(count), pa.int32()),
        "status": table["status"],
        "reward": table["reward"],
        "length": pa.array(_lengths(table["tokens"]), pa.int32()),
        "sampled": pa.array(_per_row(table["mask"], np.add, 0), pa.int32()),
        "oldest": pa.array(_per_row(table["versions"], np.minimum, -1), pa.int32()),
        "newest": pa.array(_per_row(table["versions"], np.maximum, -1), pa.int32()),
    }
    return pa.table(columns)


def _lengths(column: pa.ChunkedArray) -> np.ndarray:
    return np.diff(column.combine_chunks().offsets.to_numpy())


def _per_row(column: pa.ChunkedArray, fold: np.ufunc, empty: int) -> np.ndarray:
    """Fold each row's list into one number."""
    lengths = _lengths(column)
    values = column.combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    found, filled = np.full(len(lengths), empty), lengths > 0
    if filled.any():
        found[filled] = fold.reduceat(values, (np.cumsum(lengths) - lengths)[filled])
    return found
