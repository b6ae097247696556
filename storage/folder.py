"""A store in a local folder: whole objects under their own names, conditional writes without locks.

An object that was never overwritten is the plain file of its key, generation 1. Each overwrite is a new file
`<folder>/.gen/<name>/<generation>`, made by a hard link, which fails where the file is there: that is the whole
exclusion between processes, so a stopped process holds nothing up. The highest number is the object.
"""

import errno
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TypeVar

from schemas.errors import RequestError, RunStopped
from storage import durable
from storage.objects import (
    GenerationMismatch,
    ObjectExists,
    ObjectMissing,
    Stat,
    Stored,
    check_key,
    check_prefix,
    is_part,
)

KEPT = 64
"""Newest generations that stay on disk. So many overwrites may pass a writer between its link and its look at what
stands, before it takes a won swap for a lost one."""

_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_Found = TypeVar("_Found")


class FolderStore:
    """Objects below a folder. Safe between processes; needs a file system with hard links.

    A key can't be the folder of other keys: RunStopped.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self.url = str(self.root)
        self._aside = self.root / ".tmp"

    def probe(self, *, write: bool = True) -> None:
        """RequestError unless this folder can be read and, for `write`, written, and links exclude each other there."""
        try:
            if not write:
                return self._look()
            self._aside.mkdir(parents=True, exist_ok=True)
            durable.probe_links(self._aside)
            durable.sweep(self._aside)
        except OSError as error:
            blocker = next((p for p in (self._aside, *self._aside.parents) if os.path.isfile(p)), None)
            cause = f"{blocker} is a file, not a folder" if blocker else _cause(error)
            wanted = "written, on a file system with hard links" if write else "read"
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            advice = "make some room there" if full else f"choose a folder that can be {wanted}"
            raise RequestError(f"the store {self.root} can't be used: {cause}; {advice}") from error

    def _look(self) -> None:
        """OSError where the folder can't be listed; one that does not exist is empty."""
        with suppress(FileNotFoundError):
            os.scandir(self.root).close()

    # -- writing ----------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> int:
        while True:
            with suppress(GenerationMismatch):
                return self.swap(key, data, self._generation(key))

    def create(self, key: str, data: bytes) -> int:
        path = self._path(key)
        with _sentences(key, self.root), durable.written(self._aside, data) as file:
            try:
                durable.sync(durable.link(file, path))
            except FileExistsError as error:
                raise ObjectExists(f"{key} is there already") from error
        return 1

    def swap(self, key: str, data: bytes, generation: int) -> int:
        if self._generation(key) != generation:
            raise GenerationMismatch(f"{key} does not stand at generation {generation}")
        mine = self._numbered(key, generation + 1) if generation else self._path(key)
        with _sentences(key, self.root), durable.written(self._aside, data) as file:
            try:
                changed = durable.link(file, mine)
            except FileExistsError as error:
                raise GenerationMismatch(f"{key} has moved on from generation {generation}") from error
            if generation:
                self._refuse_stale(key, generation + 1)
            durable.sync(changed)
            if generation:
                self._tidy(key, generation + 1)
        return generation + 1

    def delete(self, key: str) -> None:
        """Oldest first: a caller killed halfway leaves the newest bytes, never older ones."""
        with _sentences(key, self.root):
            for number in sorted(self._numbers(key)):
                self._numbered(key, number).unlink(missing_ok=True)
            with suppress(*_ABSENT):
                self._path(key).unlink()

    def prune(self, prefix: str) -> None:
        """Remove empty folders below a prefix under which nobody writes any more, and the prefix's own."""
        for folder, _, _ in os.walk(self._path(prefix), topdown=False):
            with suppress(OSError):  # not empty
                os.rmdir(folder)

    def _refuse_stale(self, key: str, number: int) -> None:
        """A caller that slept through many writes may link a number that was removed as old: it has lost.

        Numbers are removed only KEPT or more below the highest, and the highest never falls. So where none stands that
        far above mine, mine was free because nobody had taken it. Where one does I may have won and been overwritten
        since: to call that lost is safe, as with a store whose answer got lost. Until it is unlinked here my number is
        below the highest, so nobody reads it.
        """
        if self._current(key) - number >= KEPT - 1:
            self._numbered(key, number).unlink(missing_ok=True)
            raise GenerationMismatch(f"{key} has moved on from generation {number - 1}")

    def _tidy(self, key: str, number: int) -> None:
        """Show the newest generation under the plain name, for people, and remove old ones.

        Readers go by the numbers, so the write stands whatever fails here.
        """
        with suppress(OSError):
            for old in self._numbers(key):
                if old <= number - KEPT:
                    self._numbered(key, old).unlink(missing_ok=True)
            shown = 0
            while (newest := self._current(key)) > max(shown, 1):
                with suppress(FileNotFoundError):  # a newer one has taken its place
                    durable.show(self._numbered(key, newest), self._path(key), self._aside)
                shown = newest

    # -- reading ----------------------------------------------------------------------------------------------

    def get(self, key: str) -> Stored:
        data, generation = self._present(key, Path.read_bytes)
        return Stored(data, generation)

    def read(self, key: str, start: int, length: int) -> bytes:
        return self._present(key, lambda path: _read_range(path, start, length))[0]

    def head(self, key: str) -> Stat | None:
        found, generation = self._newest(key, _stat)
        return None if found is None else Stat(found.st_size, generation, found.st_mtime)

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> list[str]:
        folder = check_prefix(prefix)
        with _sentences(prefix, self.root):
            return list(islice(self._walk(folder, prefix, after), limit))

    def _present(self, key: str, read: Callable[[Path], _Found]) -> tuple[_Found, int]:
        found, generation = self._newest(key, read)
        if found is None:
            raise ObjectMissing(f"there is no object {key} in {self.root}")
        return found, generation

    def _newest(self, key: str, read: Callable[[Path], _Found]) -> tuple[_Found | None, int]:
        """What `read` makes of the newest generation's file (None: there is none), and its number.

        Read again where the file was removed as old, or where the plain file was overwritten, meanwhile.
        """
        with _sentences(key, self.root):
            while True:
                number, found = self._current(key), None
                with suppress(*_ABSENT):
                    found = read(self._numbered(key, number) if number > 1 else self._path(key))
                    if number > 1:
                        return found, number
                if self._current(key) == number:
                    return found, number

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[str]:
        """Keys in order; only those folders are entered that can hold a wanted one."""
        for name in _names(self.root / folder):
            key = f"{folder}/{name}" if folder else name
            inside = key.startswith(prefix) or prefix.startswith(key)
            if not inside or (key <= after and not after.startswith(key)):
                continue
            if key.endswith("/"):
                yield from self._walk(key[:-1], prefix, after)
            elif key.startswith(prefix) and key > after:
                yield key

    # -- names ------------------------------------------------------------------------------------------------

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    def _numbered(self, key: str, number: int) -> Path:
        path = self._path(key)
        return path.parent / ".gen" / path.name / f"{number:020d}"

    def _numbers(self, key: str) -> set[int]:
        path = self._path(key)
        try:
            return {int(n) for n in os.listdir(path.parent / ".gen" / path.name) if n.isdecimal()}
        except _ABSENT:
            return set()

    def _current(self, key: str) -> int:
        """The object's generation as far as numbered files tell; 1 for a plain file, present or not."""
        return max(self._numbers(key), default=1)

    def _generation(self, key: str) -> int:
        """The object's generation; 0 where there is none."""
        with _sentences(key, self.root):
            number, path = self._current(key), self._path(key)
            durable.refuse_folder(path)
            return number if number > 1 or path.is_file() else 0


def _names(folder: Path) -> list[str]:
    """Names that can be parts of keys, folders with a '/' at the end, in the order of the keys below them."""
    with suppress(*_ABSENT), os.scandir(folder) as entries:
        return sorted(f"{e.name}/" if e.is_dir() else e.name for e in entries if is_part(e.name))
    return []


def _read_range(path: Path, start: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(length)


def _stat(path: Path) -> os.stat_result:
    durable.refuse_folder(path)
    return path.stat()


@contextmanager
def _sentences(key: str, root: Path) -> Generator[None]:
    """Failures of the disk as one sentence; what was stored before stays whole."""
    try:
        yield
    except OSError as error:
        raise RunStopped(
            f"the store {root} failed at `{key}`: {_cause(error)}; nothing stored before is lost: make room or give "
            f"access there, then run the same command again"
        ) from error


def _cause(error: OSError) -> str:
    return (error.strerror or str(error)).lower() + (f" ({error.filename})" if error.filename else "")
