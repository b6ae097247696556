"""The user's data files: read from a path or a store URL, checked, and kept in the store under their own digest.

A run never depends on a file outside the store again: what it was made from stays beside what it made.
"""

from dataclasses import dataclass
from pathlib import Path

from schemas import keys
from schemas.digest import sha256
from schemas.errors import RequestError, RunStopped
from storage.objects import ObjectExists, ObjectMissing, ObjectStore
from storage.open import open_source


@dataclass(frozen=True)
class DataFile:
    """The bytes of a data file. `where` is what the configuration calls it."""

    where: str
    data: bytes
    suffix: str
    sha256: str

    @property
    def key(self) -> str:
        """Where the store keeps it."""
        return keys.data(self.sha256, self.suffix)


def read_source(where: str, folder: Path) -> DataFile:
    """The file that `where` names: a path (from the configuration's folder) or a store URL; RequestError."""
    data = _from_store(where) if "://" in where else _from_path(where, folder)
    suffix = "parquet" if where.endswith(".parquet") else "jsonl"
    return DataFile(where, data, suffix, sha256(data))


def read_kept(store: ObjectStore, key: str) -> DataFile:
    """A data file that the store keeps; ObjectMissing where it does not."""
    data = store.get(key).data
    return DataFile(key, data, key.rpartition(".")[2], sha256(data))


def keep(store: ObjectStore, file: DataFile) -> None:
    """Put a data file under its digest, unless it is there."""
    if store.head(file.key) is not None:
        return
    try:
        store.create(file.key, file.data)
    except ObjectExists:
        return


def _from_path(where: str, folder: Path) -> bytes:
    path = folder / Path(where).expanduser()
    try:
        return path.read_bytes()
    except OSError as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else f"can't be read ({error.strerror})"
        raise RequestError(f"the data file {path} {reason}") from error


def _from_store(where: str) -> bytes:
    scheme, _, rest = where.partition("://")
    if scheme == "file":
        return _from_path("/" + rest.lstrip("/"), Path("/"))
    root, _, key = rest.partition("/")
    try:
        return open_source(f"{scheme}://{root}").get(key).data
    except ObjectMissing as error:
        raise RequestError(f"the data file {where} does not exist") from error
    except RunStopped as error:
        raise RequestError(str(error)) from error
