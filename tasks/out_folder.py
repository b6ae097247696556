"""A folder outside the store that a command fills: whole or not at all.

It is filled under another name beside its place and gets its own name at the end.
"""

import os
import shutil
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from schemas.errors import RequestError, RunStopped


def check_out(out: Path, option: str = "--out") -> None:
    """RequestError, before any work, unless the folder is missing or empty and has a folder to lie in."""
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise RequestError(f"{option} {out} is there and is not empty: name a folder that does not exist yet")
    if not out.absolute().parent.is_dir():
        raise RequestError(f"{option} {out}: there is no folder {out.absolute().parent}")


@contextmanager
def filled(out: Path, option: str = "--out") -> Generator[Path]:
    """A folder beside `out` that takes its place at the end of the block, and is removed where that fails."""
    folder = out.absolute().parent / f".{out.name}.{uuid.uuid4().hex[:8]}"
    try:
        folder.mkdir()
        yield folder
        os.rename(folder, out)
    except OSError as error:
        raise RunStopped(f"{option} {out} can't be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
