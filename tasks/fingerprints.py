"""What a data file asks, as sorted 64-bit digests: sets of millions of tasks are compared in moments.

Digests only find what two files may share; the files themselves are asked before anybody is told so. They are kept
beside the data file's copy in the store, under the same digest, so that a run that comes much later can compare itself
with what its ancestors were trained on. They can be made anew from the data file at any time.
"""

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa

from schemas import checksum, data, keys
from schemas.data import Task
from schemas.errors import RequestError
from schemas.selection import Selection
from storage.objects import ObjectMissing, ObjectStore, find
from storage.rows import read_rows, read_tasks
from tasks.sources import DataFile, read_kept

Kind = Literal["tasks", "warm_up"]
"""What the rows of a file are: tasks, or conversations that a warm-up imitates."""
Digests = np.ndarray
"""uint64, sorted, each once."""
Asked = tuple[str, str, str]
"""`id` or `prompt`, the text as it is compared, and where it stands, in words."""

RULE = b"1"
"""Raised when `plain` or `asked` changes: digests by another rule are made anew."""
_RULE = b"headrace.rule"


@dataclass(frozen=True)
class DataSet:
    """A data file, what it is called, and the digests of what it asks."""

    words: str
    """Setting and file, for people."""
    make: Callable[[], Digests]
    rows: Callable[[], Iterable[Asked]]
    """Read only where the digests meet."""

    @cached_property
    def digests(self) -> Digests:
        """Read or made when they are first wanted: few of those who open a run compare anything."""
        return self.make()


def kind_of(setting: str) -> Kind:
    """What the rows of the file that a setting names are."""
    return "warm_up" if setting.startswith("warm_up.") else "tasks"


def plain(text: str) -> str:
    """The text without what doesn't make it another one: white space and case."""
    return " ".join(text.split()).casefold()


def asked(file: DataFile, kind: Kind) -> Iterator[Asked]:
    """What each row asks. A task and a trajectory of a task have an id and a prompt, a conversation only its first user
    message."""
    if kind == "tasks":
        yield from asked_by(read_tasks(file.data, file.suffix, file.where))
        return
    if file.suffix == "json":
        yield from _asked_in(Selection.from_bytes(file.data, file.where))
        return
    for row, place in read_rows(file.data, file.suffix, file.where):
        if text := plain(data.opening(row, place)):
            yield "prompt", text, place


def asked_by(tasks: Iterable[Task]) -> Iterator[Asked]:
    """The same of tasks that have been read."""
    for task in tasks:
        place = f"task {task.id}"
        yield "id", task.id, place
        yield "prompt", plain(task.prompt), place


def _asked_in(selection: Selection) -> Iterator[Asked]:
    """What the trajectories asked that a warm-up takes from a run's log."""
    for one in selection.everything:
        place = f"trajectory {one.trajectory} of run {selection.run}"
        yield "id", one.task_id, place
        if text := plain(one.prompt):
            yield "prompt", text, place


def digests(rows: Iterable[Asked]) -> Digests:
    """The digests of what is asked."""
    return np.unique(np.fromiter((_digest(what, text) for what, text, _ in rows), np.uint64))


def _digest(what: str, text: str) -> int:
    found = hashlib.blake2b(f"{what}\0{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(found, "little")


def shared(first: DataSet, second: DataSet) -> str:
    """What both ask and where it stands, in words; empty if they share nothing. An id is named before a prompt."""
    common = np.intersect1d(first.digests, second.digests, assume_unique=True)
    if not common.size:
        return ""
    wanted = frozenset(common.tolist())
    one, other = _among(first, wanted), _among(second, wanted)
    both = sorted(one.keys() & other.keys())
    if not both:
        return ""
    what, text = both[0]
    return f"the {'task id' if what == 'id' else what} `{text[:80]}` ({one[both[0]]}, {other[both[0]]})"


def _among(found: DataSet, wanted: frozenset[int]) -> dict[tuple[str, str], str]:
    places: dict[tuple[str, str], str] = {}
    for what, text, place in found.rows():
        if _digest(what, text) in wanted:
            places.setdefault((what, text), place)
    return places


def keep(store: ObjectStore, file: DataFile, kind: Kind, found: Digests) -> None:
    """Put the digests of a data file into the store, unless they are there."""
    if _kept(store, file.sha256, kind) is None:
        store.put(keys.fingerprints(file.sha256, kind), _encode(found))


def of_file(store: ObjectStore, setting: str, file: DataFile, tasks: Iterable[Task] | None = None) -> DataSet:
    """The set of a request's file. `tasks`: its rows, where they have been read."""
    words, kind = f"{setting} ({file.where})", kind_of(setting)

    def rows() -> Iterator[Asked]:
        return asked(file, kind)

    if tasks is None:
        return DataSet(words, lambda: _kept_or_made(store, file.sha256, kind, rows()), rows)
    found = _kept_or_made(store, file.sha256, kind, asked_by(tasks))  # now: nobody is to hold on to the rows
    return DataSet(words, lambda: found, rows)


def of_stored(store: ObjectStore, key: str, sha256: str, kind: Kind, words: str) -> DataSet:
    """The set of a data file that the store keeps. RequestError where it is gone and so are its digests."""

    def rows() -> Iterator[Asked]:
        try:
            yield from asked(read_kept(store, key), kind)
        except ObjectMissing as error:
            raise RequestError(
                f"{words} can't be compared with what is measured: {key} is no longer in {store.url}; put the file back"
            ) from error

    return DataSet(words, lambda: _kept_or_made(store, sha256, kind, rows()), rows)


def _kept_or_made(store: ObjectStore, sha256: str, kind: Kind, rows: Iterable[Asked]) -> Digests:
    found = _kept(store, sha256, kind)
    return digests(rows) if found is None else found


def _kept(store: ObjectStore, sha256: str, kind: Kind) -> Digests | None:
    """The stored digests; None where there are none, or they are damaged or follow another rule."""
    stored = find(store, keys.fingerprints(sha256, kind))
    if stored is None:
        return None
    try:
        table = pa.ipc.open_file(pa.BufferReader(stored.data)).read_all()
    except (pa.ArrowException, OSError):
        return None
    metadata = table.schema.metadata
    if not checksum.holds(stored.data, metadata) or metadata.get(_RULE) != RULE:
        return None
    return table.column(0).to_numpy()


def _encode(found: Digests) -> bytes:
    schema = pa.schema([("digest", pa.uint64())], metadata={_RULE: RULE, checksum.KEY: checksum.BLANK})
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_table(pa.table([pa.array(found)], schema=schema))
    return checksum.stamp(sink.getvalue())
