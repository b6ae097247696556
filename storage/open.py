"""From a URL to a store, in any process."""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from schemas.errors import RequestError
from storage.folder import FolderStore
from storage.memory import MemoryStore
from storage.objects import ObjectStore

if TYPE_CHECKING:
    from storage.gcs import GcsStore

_memory: dict[str, MemoryStore] = {}


def open_store(url: str, *, write: bool = True) -> ObjectStore:
    """The store that a URL names: a path or `file:///path` is a folder, `gs://bucket/prefix` lies in Google Cloud
    Storage, `memory://name` in this process's memory.

    Raises RequestError where the store can't be read, or can't be written though `write` is wanted, or where its kind
    is unknown.
    """
    store = open_source(url)
    if not isinstance(store, MemoryStore):
        store.probe(write=write)
    return store


def open_source(url: str) -> "MemoryStore | FolderStore | GcsStore":
    """A store to read from, which need not be one that can be written. RequestError where its kind is unknown."""
    scheme, separator, rest = url.partition("://")
    if scheme == "memory" and separator:
        return _memory.setdefault(rest, MemoryStore(rest))
    if scheme == "gs" and separator:
        from storage.gcs import GcsStore

        return GcsStore(url)
    return FolderStore(_file_path(scheme, rest) if separator else Path(url).expanduser())


def _file_path(scheme: str, rest: str) -> Path:
    host, slash, path = rest.partition("/")
    if scheme != "file":
        raise RequestError(
            f"the store {scheme}://{rest} is of an unknown kind `{scheme}`: give a folder, as a path or "
            f"file:///path, or gs://bucket/prefix"
        )
    if host not in ("", "localhost") or not slash:
        raise RequestError(f"the store file://{rest} names no absolute path of this machine: write file:///path")
    return Path("/" + unquote(path))
