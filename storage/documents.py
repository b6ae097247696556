"""Reading a document of ours at its key: what most readers of manifests, leases and pointers do."""

from typing import TypeVar

from schemas.base import Document
from storage.objects import ObjectStore, find

Kind = TypeVar("Kind", bound=Document)


def read_document(store: ObjectStore, kind: type[Kind], key: str) -> Kind | None:
    """The document at a key, if one is there; RequestError where it is damaged or of another schema version."""
    found = read_generation(store, kind, key)
    return found[0] if found else None


def read_generation(store: ObjectStore, kind: type[Kind], key: str) -> tuple[Kind, int] | None:
    """As `read_document`, with the generation that a swap of it needs."""
    stored = find(store, key)
    return (kind.from_bytes(stored.data, key), stored.generation) if stored else None
