"""From a URL to a store, in any process."""

from pathlib import Path
from urllib.parse import urlsplit

from schemas.errors import RequestError
from storage.folder import FolderStore
from storage.memory import MemoryStore
from storage.objects import ObjectStore

_memory: dict[str, MemoryStore] = {}


def open_store(url: str) -> ObjectStore:
    """The store that a URL names: a path or `file://…` is a folder, `memory://name` this process's memory.

    Raises RequestError where the store can't be written or its kind is unknown.
    """
    scheme, separator, rest = url.partition("://")
    if scheme == "memory" and separator:
        return _memory.setdefault(rest, MemoryStore(rest))
    if separator and scheme != "file":
        raise RequestError(f"the store {url} is of an unknown kind `{scheme}`: give a folder (a path or file://…)")
    store = FolderStore(Path(urlsplit(url).path if separator else url).expanduser())
    store.probe()
    return store
