"""From a URL to a store, in any process."""

from pathlib import Path
from urllib.parse import unquote

from schemas.errors import RequestError
from storage.folder import FolderStore
from storage.memory import MemoryStore
from storage.objects import ObjectStore

_memory: dict[str, MemoryStore] = {}


def open_store(url: str) -> ObjectStore:
    """The store that a URL names: a path or `file:///path` is a folder, `memory://name` this process's memory.

    Raises RequestError where the store can't be written or its kind is unknown.
    """
    scheme, separator, rest = url.partition("://")
    if scheme == "memory" and separator:
        return _memory.setdefault(rest, MemoryStore(rest))
    store = FolderStore(_file_path(scheme, rest) if separator else Path(url).expanduser())
    store.probe()
    return store


def _file_path(scheme: str, rest: str) -> Path:
    host, slash, path = rest.partition("/")
    if scheme != "file":
        raise RequestError(
            f"the store {scheme}://{rest} is of an unknown kind `{scheme}`: give a folder, as a path or file:///path"
        )
    if host not in ("", "localhost") or not slash:
        raise RequestError(f"the store file://{rest} names no absolute path of this machine: write file:///path")
    return Path("/" + unquote(path))
