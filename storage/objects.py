"""The object store that everything meets in: whole objects, conditional writes, nothing else.

Backends: a local folder (`storage.folder`), Google Cloud Storage (`storage.gcs`) and memory (`storage.memory`). What
they promise is what an object store with generations can promise, so nothing may lean on local paths.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Protocol

from schemas.digest import canonical_json
from schemas.errors import HeadraceError, RequestError


@dataclass(frozen=True)
class Stored:
    """An object as it was read."""

    data: bytes
    generation: int


@dataclass(frozen=True)
class Stat:
    """What is known of an object without reading it."""

    size: int
    """Bytes."""
    generation: int
    modified: float
    """Unix seconds of the last write by the store's own clock, which is nobody else's: good for hours, not seconds."""


class ObjectExists(HeadraceError):
    """A create met an object that is there."""


class ObjectMissing(HeadraceError):
    """A read met no object."""


class GenerationMismatch(HeadraceError):
    """A swap met another generation than the one it expected."""


class ObjectStore(Protocol):
    """Objects under '/'-separated keys. Every write becomes visible whole or not at all.

    A generation is a positive number that changes with every write of a key. Delete only what nobody writes any more:
    what a write that races a delete leaves is undefined, and a key that is made anew may count its generations anew.
    Keys that are refused (`check_key`) raise RequestError, a store that fails RunStopped.
    """

    url: str
    """What `storage.open.open_store` opens this store by, in this or another process."""

    def put(self, key: str, data: bytes) -> int:
        """Write or overwrite; returns the new generation."""
        ...

    def create(self, key: str, data: bytes) -> int:
        """Write only if absent, else ObjectExists; exactly one of several racing callers succeeds."""
        ...

    def swap(self, key: str, data: bytes, generation: int) -> int:
        """Overwrite only if the object stands at `generation` (0: absent), else GenerationMismatch.

        Whoever gets a mismatch reads again: it may, rarely, have written and been overwritten many times since, as
        with an answer that got lost on the way.
        """
        ...

    def get(self, key: str) -> Stored:
        """The whole object and its generation; ObjectMissing."""
        ...

    def read(self, key: str, start: int, length: int) -> bytes:
        """At most `length` bytes from `start`; ObjectMissing."""
        ...

    def head(self, key: str) -> Stat | None:
        """Size, generation and time, or None."""
        ...

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> list[str]:
        """Keys that start with `prefix` and are greater than `after`, sorted as text."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; an absent one is fine."""
        ...


def write_pause(store: ObjectStore) -> float:
    """Least seconds between two writes of one object that the store takes well: its `write_pause`, if it has one.

    A store may wait that long before a write, so whoever writes one object again and again had better not be hasty.
    """
    return getattr(store, "write_pause", 0.0)


def prune(store: ObjectStore, prefix: str) -> None:
    """Let a store that has folders drop the empty ones below a prefix under which nobody writes any more."""
    if (drop := getattr(store, "prune", None)) is not None:
        drop(prefix)


_PART = re.compile(r"[A-Za-z0-9_=@+-][A-Za-z0-9._=@+-]*")
_KEY = re.compile(f"{_PART.pattern}(?:/{_PART.pattern})*")


def is_part(name: str) -> bool:
    """Whether a name may stand between the '/' of a key."""
    return _PART.fullmatch(name) is not None


def check_key(key: str) -> str:
    """The key itself; RequestError where it is not '/'-separated parts of plain characters."""
    if _KEY.fullmatch(key) is None:
        raise RequestError(
            f"`{key}` is no store key: use letters, digits and . _ = @ + - in parts that don't start with a dot"
        )
    return key


def check_prefix(prefix: str) -> str:
    """The folder (empty: the root) in or below which the keys with this prefix lie; RequestError if it is no key."""
    folder, slash, _ = prefix.rpartition("/")
    return check_key(folder) if slash else ""


def find(store: ObjectStore, key: str) -> Stored | None:
    """The object, or None where there is none."""
    try:
        return store.get(key)
    except ObjectMissing:
        return None


def get_json(store: ObjectStore, key: str) -> Any:
    """The JSON value in an object."""
    return json.loads(store.get(key).data)


def put_json(store: ObjectStore, key: str, value: Any) -> int:
    """Write or overwrite an object with a value's canonical JSON."""
    return store.put(key, canonical_json(value))


def create_json(store: ObjectStore, key: str, value: Any) -> int:
    """Create an object with a value's canonical JSON."""
    return store.create(key, canonical_json(value))


def swap_json(store: ObjectStore, key: str, value: Any, generation: int) -> int:
    """Swap an object that stands at `generation` for a value's canonical JSON."""
    return store.swap(key, canonical_json(value), generation)
