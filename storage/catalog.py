"""The catalog of an RL stage: its ledger as columns, so that an audit of a long run need not open every record.

An answer is made from the stored parts and, behind them, from the ledger itself, and carries the ledger head that it
was made from. Parts that the ledger does not bear out are refused, with a sentence, and the ledger answers alone.
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from schemas import keys
from schemas.digest import sha256
from schemas.errors import AuditViolation
from schemas.ledger import record_digest
from storage.catalog_copy import PartName, copy_records, covered, part_names
from storage.catalog_part import BadPart, Part, RecordNote, StoredPart, decode
from storage.objects import ObjectStore, find

_PICKED_BY = ["index", "kind", "disposition"]


@dataclass(frozen=True)
class Catalog:
    """The records 0 to `end` - 1 of one stage's ledger."""

    base: str
    parts: tuple[StoredPart, ...]
    tail: Part
    refused: str = ""
    """Why the stored parts were not used; empty where they were or where there are none."""

    @property
    def records(self) -> tuple[RecordNote, ...]:
        return (*(note for part in self.parts for note in part.records), *self.tail.records)

    @property
    def head(self) -> str:
        """Digest of the newest record: what the answer was made from."""
        return self.tail.head

    @property
    def from_parts(self) -> int:
        """Records that were answered for by stored parts."""
        return self.tail.first

    @property
    def closed(self) -> bool:
        return bool(self.records) and self.records[-1].kind == "close"

    def until(self, index: int, head: str) -> None:
        """Check that the record before `index` is the one with this digest; AuditViolation if it is not."""
        records = self.records
        found = records[index - 1].digest if 0 < index <= len(records) else ""
        if found != head:
            raise AuditViolation(f"the ledger of {self.base} has no record {head[:12]}: it was changed or removed")

    def rows(self, columns: list[str], where: pc.Expression) -> pa.Table:
        """These columns of the rows that `where` picks by index, kind or disposition, in the order of the ledger."""
        read = list(dict.fromkeys([*columns, *_PICKED_BY]))
        tables = [part.read(read) for part in self.parts] + [self.tail.table.select(read)]
        return pa.concat_tables([t.filter(where).select(columns).replace_schema_metadata() for t in tables])

    def find(self, column: str, value: str) -> pa.Table:
        """The rows with this value in a column, in the order of the ledger."""
        tables = [p.find(column, value).replace_schema_metadata() for p in self.parts]
        return pa.concat_tables([*tables, self.tail.table.filter(pc.field(column) == value)])


def open_catalog(
    store: ObjectStore, base: str, *, end: int | None = None, facts: bool = False, ledger_only: bool = False
) -> Catalog:
    """The catalog up to the ledger index `end` (None: the head), or further where the stored parts go further.

    `facts`: the records behind the stored parts get theirs from the shards too. Raises AuditViolation where the ledger
    behind the parts is broken.
    """
    parts, refused = ((), "") if ledger_only else _stored(store, base)
    first, head = (parts[-1].end, parts[-1].head) if parts else (0, "")
    return Catalog(base, parts, copy_records(store, base, first, head, facts=facts, end=end), refused)


def _stored(store: ObjectStore, base: str) -> tuple[tuple[StoredPart, ...], str]:
    """The parts that the ledger bears out, or none and why."""
    parts: list[StoredPart] = []
    for name in covered(part_names(store, base)):
        try:
            part = _part(store, base, name)
        except BadPart as error:
            return (), _refusal(name.key(base), str(error))
        if part.previous != (parts[-1].head if parts else ""):
            return (), _refusal(name.key(base), "does not follow the part before it")
        parts.append(part)
    if not parts:
        return (), ""
    last = find(store, keys.ledger(base, parts[-1].end - 1))
    if last is None or record_digest(last.data) != parts[-1].head:
        why = f"was built from the ledger head {parts[-1].head[:12]}, which is not in the ledger: records were changed"
        return (), _refusal(keys.catalog(base), why)
    return tuple(parts), ""


def _part(store: ObjectStore, base: str, name: PartName) -> StoredPart:
    stored = find(store, name.key(base))
    if stored is None:
        raise BadPart("was removed while it was read")
    if not sha256(stored.data).startswith(name.sha256):
        raise BadPart("is truncated or damaged: its bytes are not those that its name says")
    part = decode(stored.data)
    if (part.first, part.end) != (name.first, name.end):
        raise BadPart("covers other records than its name says")
    return part


def _refusal(key: str, why: str) -> str:
    return f"{key} {why}; the ledger answers instead, and `headrace audit catalog RUN` builds the catalog anew"
