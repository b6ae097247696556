"""Files that are on disk before they bear a name: write aside, fsync, link, fsync the folder.

A link fails where the name is taken, so of several processes that publish under one name exactly one succeeds, and no
reader ever sees a part of a file.
"""

import errno
import os
import time
import uuid
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

ABANDONED_SECONDS = 86400.0
"""Age from which a temporary file is taken for that of a killed writer."""


@contextmanager
def written(aside: Path, data: bytes) -> Generator[Path]:
    """The data in a file of its own in the folder `aside`, on disk; removed afterwards."""
    path = aside / uuid.uuid4().hex
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


def link(file: Path, path: Path) -> set[Path]:
    """Give a written file a name. Returns the folders to `sync` for the name to be durable.

    Raises FileExistsError where the name is taken by a file, IsADirectoryError where it is taken by a folder.
    """
    changed = {path.parent, *_make_folders(path.parent)}
    try:
        os.link(file, path)
    except FileExistsError:
        refuse_folder(path)
        raise
    return changed


def sync(folders: Iterable[Path]) -> None:
    """Let the names in these folders survive a loss of power."""
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def refuse_folder(path: Path) -> None:
    """IsADirectoryError if the path is a folder."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "there is a folder of that name", str(path))


def show(file: Path, path: Path, aside: Path) -> None:
    """Let the path be one more name of `file`, in place of what it named; not synced to disk."""
    name = aside / uuid.uuid4().hex
    try:
        os.link(file, name)
        os.replace(name, path)
    finally:
        name.unlink(missing_ok=True)  # a rename onto another name of the same file leaves the first one there


def probe_links(aside: Path) -> None:
    """OSError unless files can be written in the folder and a link to a taken name fails."""
    with written(aside, b"probe") as file:
        name = file.with_suffix(".link")
        try:
            os.link(file, name)
            with suppress(FileExistsError):
                os.link(file, name)
                raise OSError(errno.ENOTSUP, "hard links don't exclude each other there")
        finally:
            name.unlink(missing_ok=True)


def sweep(aside: Path) -> None:
    """Remove what killed writers left in the folder."""
    with os.scandir(aside) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if time.time() - entry.stat().st_mtime > ABANDONED_SECONDS:
                    os.unlink(entry)


def _opened(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o644)


def _make_folders(folder: Path) -> list[Path]:
    """Make missing folders; returns those whose entries changed."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
    return [each.parent for each in missing]
