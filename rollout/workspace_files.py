"""Files in a folder that hostile commands have written in: read and written without ever following a link out.

Each part of a path is opened on its own and must be a plain folder; the file itself must be a plain file.
"""

import contextlib
import os
import stat
import uuid
from collections.abc import Generator
from pathlib import Path, PurePosixPath

from rollout.sandbox_bubblewrap import FOLDER
from rollout.sandbox_child import user
from rollout.tools import ToolError


def _parts(folder: Path, path: str) -> tuple[str, ...]:
    """The names on the way to a file, from a relative path or one below where commands see the folder."""
    pure = PurePosixPath(path)
    if pure.is_absolute():
        seen = next((f for f in (FOLDER, str(folder)) if pure.is_relative_to(f)), None)
        if seen is None:
            raise ToolError(f"{path!r} is outside the working folder: use a relative path")
        pure = pure.relative_to(seen)
    if not pure.parts or ".." in pure.parts or "\0" in path or not path.isprintable():
        raise ToolError(f"{path!r} is not a path of a file in the working folder")
    return pure.parts


@contextlib.contextmanager
def _parent(folder: Path, path: str, make: bool) -> Generator[tuple[int, str]]:
    """An open descriptor of the folder that a file is in, and the file's name."""
    *above, name = _parts(folder, path)
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in above:
            if make:
                _make_folder(part, here)
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = below
        yield here, name
    except OSError as error:
        raise ToolError(f"{path!r} can't be used: {error.strerror}") from error
    finally:
        os.close(here)


def _make_folder(name: str, parent: int) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
        owner = user()
        if owner is not None:
            os.chown(name, owner, owner, dir_fd=parent, follow_symlinks=False)


def read_text(folder: Path, path: str, most: int) -> str:
    """A file's text; ToolError where it isn't a plain UTF-8 file in the folder, of at most `most` bytes."""
    with _parent(folder, path, make=False) as (parent, name):
        number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
        with open(number, "rb") as file:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise ToolError(f"{path!r} is not a file")
            data = file.read(most + 1)
    if len(data) > most:
        raise ToolError(f"{path!r} has more than {most} bytes: use the shell for a part of it")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ToolError(f"{path!r} is not a text file") from error


def write_text(folder: Path, path: str, text: str) -> None:
    """Put a file in the place of whatever has its name, whole or not at all; folders on the way are made."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ToolError("the text can't be written as UTF-8") from error
    with _parent(folder, path, make=True) as (parent, name):
        mode, new = 0o644, f".{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode & 0o777
        number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=parent)
        try:
            with open(number, "wb") as file:
                file.write(data)
                os.fchmod(number, mode | 0o600)
                if (owner := user()) is not None:
                    os.fchown(number, owner, owner)
            os.rename(new, name, src_dir_fd=parent, dst_dir_fd=parent)
        except OSError:
            os.unlink(new, dir_fd=parent)
            raise


def exists(folder: Path, path: str) -> bool:
    """Whether anything has that name."""
    try:
        with _parent(folder, path, make=False) as (parent, name):
            os.stat(name, dir_fd=parent, follow_symlinks=False)
    except ToolError:
        return False
    return True
