"""Metrics as Parquet: one row for each step record of a ledger, in files of a fixed range of ledger indices.

A step's figures are known after its record is durable, so they stand in the record after it, and a replay computes them
again if the learner dies in between. The files are made from the ledger alone: however often a learner is killed, every
step has one row.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from schemas import keys
from schemas.ledger import Disposition, Kind
from schemas.metrics import COLUMNS, FIGURES
from storage.ledger import Entry, read_entry
from storage.objects import GenerationMismatch, ObjectExists, ObjectStore, find

PART = 256
"""Ledger records of a file."""


def write_metrics(store: ObjectStore, base: str) -> int:
    """Bring the files up to the head of the ledger; returns the rows that are new or complete now.

    The last row is made anew, since its figures may not have been in the ledger. If another learner writes the same
    file at the same time, one of the two stands, and the next call makes up for what it lacks. LogDamaged if a record
    can't be read.
    """
    there = store.list(f"{keys.metrics(base)}/")
    kept = _table(store, there[-1]).to_pylist() if there else []
    made: list[dict[str, Any]] = []
    for index, entry, after in _from(store, base, kept.pop()["index"] if kept else 0):
        if entry.record.metadata.kind == "step":
            made.append(_row(index, entry, after))
    for start, part in groupby([*kept, *made], key=lambda row: row["index"] // PART * PART):
        _write(store, keys.metrics_part(base, start), list(part))
    return len(made)


def read_metrics(store: ObjectStore, base: str) -> pa.Table:
    """A row of `schemas.metrics.COLUMNS` for each step, in order."""
    parts = [_table(store, key) for key in store.list(f"{keys.metrics(base)}/")]
    return pa.concat_tables(parts) if parts else COLUMNS.empty_table()


def _table(store: ObjectStore, key: str) -> pa.Table:
    return pq.read_table(pa.BufferReader(store.get(key).data))


def _from(store: ObjectStore, base: str, first: int) -> Iterator[tuple[int, Entry, Entry | None]]:
    """(index, record, the record after it) from a ledger index on."""
    entry, index = read_entry(store, base, first), first
    while entry is not None:
        after = read_entry(store, base, index + 1)
        yield index, entry, after
        entry, index = after, index + 1


def _row(index: int, entry: Entry, after: Entry | None) -> dict[str, Any]:
    metadata = entry.record.metadata
    ended = [r for r in entry.record.rows if r.kind == Kind.TRAJECTORY]
    figures = after.record.metadata.figures if after else {}
    return {
        "step": metadata.step,
        "index": index,
        "version": metadata.version,
        "updates": metadata.updates,
        "learner": metadata.learner,
        "trajectories": len(ended),
        "trained": sum(r.disposition == Disposition.TRAINED for r in ended),
        **{name: figures.get(name) for name in FIGURES},
    }


def _write(store: ObjectStore, key: str, rows: list[dict[str, Any]]) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=COLUMNS), sink, compression="zstd")
    data, standing = sink.getvalue().to_pybytes(), find(store, key)
    try:
        if standing is None:
            store.create(key, data)
        elif standing.data != data:
            store.swap(key, data, standing.generation)
    except (ObjectExists, GenerationMismatch):
        return
