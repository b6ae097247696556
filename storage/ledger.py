"""The ledger in the store: appending is the learner's only lock, reading it back is recovery.

Record `<step>` is created if absent. Whoever loses that race has been replaced and must stop; it never adopts the
winner's record.
"""

from dataclasses import dataclass

from schemas import keys
from schemas.errors import Fenced, LogDamaged
from schemas.ledger import Record, decode, encode, record_digest
from storage.objects import ObjectExists, ObjectStore, find


@dataclass(frozen=True)
class Entry:
    """A record as it stands in the store, with the digest that the next one names."""

    record: Record
    digest: str


def read_entry(store: ObjectStore, base: str, index: int) -> Entry | None:
    """The record at a ledger index, or None where the ledger ends. LogDamaged if it is damaged or foreign."""
    key = keys.ledger(base, index)
    stored = find(store, key)
    if stored is None:
        return None
    try:
        return Entry(decode(stored.data), record_digest(stored.data))
    except ValueError as error:
        raise LogDamaged(
            f"the ledger record {key} {error}: run `headrace audit verify` before anything else"
        ) from error


def append(store: ObjectStore, base: str, index: int, record: Record) -> str:
    """Make a record durable and return its digest. Raises Fenced if the index is taken by another record.

    A create whose answer was lost is recognised by reading back: the same bytes are ours, since they name the learner.
    """
    key, data = keys.ledger(base, index), encode(record)
    try:
        store.create(key, data)
    except ObjectExists as error:
        found = store.get(key).data
        if found != data:
            raise _fenced(key, found) from error
    return record_digest(data)


def expect_end(store: ObjectStore, base: str, index: int) -> None:
    """Raises Fenced if another learner has written the record at `index`, where the caller holds the ledger to end."""
    key = keys.ledger(base, index)
    if store.head(key) is not None:
        raise _fenced(key, store.get(key).data)


def _fenced(key: str, data: bytes) -> Fenced:
    return Fenced(f"{key} was written by {_writer(data)}, which has taken over this run: this learner stops")


def _writer(data: bytes) -> str:
    try:
        return f"learner {decode(data).metadata.learner}"
    except ValueError:
        return "something else"
