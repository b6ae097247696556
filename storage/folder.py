"""A store in a local folder: whole objects by rename and link, conditional writes without locks.

An object that was never overwritten is the plain file of its key, generation 1. Each overwrite is a new file
`<folder>/.gen/<name>/<generation>`, made by a hard link, which fails where the file is there: that is the whole
exclusion between processes, so a stopped process holds nothing up. The highest number is the object.
"""

import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from schemas.errors import RequestError, RunStopped
from storage.objects import GenerationMismatch, ObjectExists, ObjectMissing, Stat, Stored, check_key

KEPT = 16
"""Newest generations that stay on disk."""


class FolderStore:
    """Objects below a folder. Safe between processes; needs a file system with hard links."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self.url = str(self.root)
        self._temporary = self.root / ".tmp"

    def probe(self) -> None:
        """RequestError unless this folder can be written and links exclude each other."""
        try:
            self._temporary.mkdir(parents=True, exist_ok=True)
            with self._written(b"probe") as temporary:
                link = temporary.with_suffix(".link")
                os.link(temporary, link)
                link.unlink()
        except FileExistsError as error:
            raise RequestError(f"the store {self.root} can't be a folder: {error.filename} is a file") from error
        except OSError as error:
            raise RequestError(
                f"the store {self.root} can't be used: {_cause(error)}; choose another --root"
            ) from error

    # -- writing ----------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> int:
        while True:
            try:
                return self.swap(key, data, self._generation(key))
            except GenerationMismatch:
                continue

    def create(self, key: str, data: bytes) -> int:
        path = self._path(key)
        with _sentences(key, self.root), self._written(data) as temporary:
            try:
                self._link(temporary, path)
            except FileExistsError as error:
                raise ObjectExists(f"{key} is there already") from error
        return 1

    def swap(self, key: str, data: bytes, generation: int) -> int:
        if generation == 0:
            try:
                return self.create(key, data)
            except ObjectExists as error:
                raise GenerationMismatch(f"{key} is there already") from error
        if self._generation(key) != generation:
            raise GenerationMismatch(f"{key} does not stand at generation {generation}")
        mine = self._numbered(key, generation + 1)
        with _sentences(key, self.root), self._written(data) as temporary:
            try:
                self._link(temporary, mine)
            except FileExistsError as error:
                raise GenerationMismatch(f"{key} has moved on from generation {generation}") from error
            self._refuse_stale(key, mine, generation + 1)
            self._refresh(key, temporary, generation + 1)
            self._forget_old(key, generation + 1)
        return generation + 1

    def delete(self, key: str) -> None:
        with _sentences(key, self.root):
            for path in [self._numbered(key, n) for n in self._numbers(key)]:
                path.unlink(missing_ok=True)
            self._path(key).unlink(missing_ok=True)

    def _refuse_stale(self, key: str, mine: Path, number: int) -> None:
        """A caller that slept through many writes may link a number that was removed as old: it has lost.

        Numbers are removed only below the newest KEPT, so where no number that far above mine exists, mine was free
        because nobody had taken it. Where one exists I may have won long ago and been overwritten since: to report that
        as lost is safe, as with a store whose answer got lost.
        """
        if max(self._numbers(key), default=0) - number >= KEPT - 1:
            mine.unlink(missing_ok=True)
            raise GenerationMismatch(f"{key} has moved on from generation {number - 1}")

    def _refresh(self, key: str, temporary: Path, number: int) -> None:
        """Show the newest generation under the plain name, for people; readers go by the numbers."""
        shown = temporary.with_suffix(".shown")
        while True:
            with suppress(FileNotFoundError):
                shown.unlink(missing_ok=True)
                os.link(self._numbered(key, number), shown)
                os.replace(shown, self._path(key))
            newest = max(self._numbers(key), default=number)
            if newest <= number:
                return
            number = newest

    def _forget_old(self, key: str, number: int) -> None:
        for old in self._numbers(key):
            if old <= number - KEPT:
                self._numbered(key, old).unlink(missing_ok=True)

    # -- reading ----------------------------------------------------------------------------------------------

    def get(self, key: str) -> Stored:
        with _sentences(key, self.root):
            path, number = self._open(key)
            try:
                return Stored(path.read_bytes(), number)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                if self._current(key) != number:  # removed under our hands: a newer one is there
                    return self.get(key)
                raise ObjectMissing(f"there is no object {key} in {self.root}") from error

    def read(self, key: str, start: int, length: int) -> bytes:
        with _sentences(key, self.root):
            path, number = self._open(key)
            try:
                with path.open("rb") as file:
                    file.seek(start)
                    return file.read(length)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                if self._current(key) != number:
                    return self.read(key, start, length)
                raise ObjectMissing(f"there is no object {key} in {self.root}") from error

    def head(self, key: str) -> Stat | None:
        with _sentences(key, self.root):
            path, number = self._open(key)
            try:
                return Stat(path.stat().st_size, number) if path.is_file() else None
            except FileNotFoundError:
                return self.head(key) if self._current(key) != number else None

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> list[str]:
        folder, _, _ = prefix.rpartition("/")
        with _sentences(prefix, self.root):
            found = [k for k in self._walk(folder) if k.startswith(prefix) and k > after]
        return sorted(found)[:limit]

    def _walk(self, folder: str) -> Iterator[str]:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.root / folder) as entries:
            for entry in entries:
                key = f"{folder}/{entry.name}" if folder else entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    yield from self._walk(key)
                else:
                    yield key

    # -- names ------------------------------------------------------------------------------------------------

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    def _numbered(self, key: str, number: int) -> Path:
        path = self._path(key)
        return path.parent / ".gen" / path.name / f"{number:020d}"

    def _numbers(self, key: str) -> list[int]:
        path = self._path(key)
        try:
            return [int(n) for n in os.listdir(path.parent / ".gen" / path.name)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _current(self, key: str) -> int:
        """The object's generation as far as numbered files tell; 1 for a plain file, present or not."""
        return max(self._numbers(key), default=1)

    def _generation(self, key: str) -> int:
        with _sentences(key, self.root):
            number = self._current(key)
            return number if number > 1 or self._path(key).is_file() else 0

    def _open(self, key: str) -> tuple[Path, int]:
        number = self._current(key)
        return (self._numbered(key, number) if number > 1 else self._path(key)), number

    # -- files ------------------------------------------------------------------------------------------------

    @contextmanager
    def _written(self, data: bytes) -> Iterator[Path]:
        """The data in a temporary file on the same file system, on disk; gone afterwards."""
        path = self._temporary / f"{os.getpid()}-{threading.get_ident()}-{uuid.uuid4().hex}"
        try:
            descriptor = _opened(path)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            yield path
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _link(self, temporary: Path, path: Path) -> None:
        """Publish a temporary file under a name, if the name is free, and make the name durable."""
        made = _make_folders(path.parent)
        os.link(temporary, path)
        for folder in {path.parent, *made}:
            _sync_folder(folder)


def _opened(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o644)


def _make_folders(folder: Path) -> list[Path]:
    """Create missing folders; returns those whose entries changed."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    if not missing:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    return [p.parent for p in missing]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _sentences(key: str, root: Path) -> Iterator[None]:
    """Failures of the disk as one sentence; what was stored before stays whole."""
    try:
        yield
    except OSError as error:
        raise RunStopped(
            f"the store {root} failed at `{key}`: {_cause(error)}; nothing stored before is lost"
        ) from error


def _cause(error: OSError) -> str:
    return (error.strerror or str(error)).lower() + (f" ({error.filename})" if error.filename else "")
