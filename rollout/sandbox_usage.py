"""What a tree of processes and a folder use, read from outside, from /proc and the file system (Linux).

Whatever is looked at may vanish meanwhile, or be made to be hard to read: what can't be counted counts as too much.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollout.sandbox import Ended, Limits

_PAGE = os.sysconf("SC_PAGE_SIZE")


def tree(root: int) -> list[int]:
    """A process and its descendants that are still tied to it."""
    found, new = [], [root]
    while new:
        pid = new.pop()
        found.append(pid)
        new += _children(pid)
    return found


def _children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        return [int(c) for t in threads for c in Path(f"/proc/{pid}/task/{t}/children").read_text().split()]
    except OSError:  # it has ended
        return []


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0


def _threads(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def _nameless(pid: int) -> Iterator[tuple[tuple[int, int], int]]:
    """Identity and bytes of files that a process holds open but that no folder lists any more."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for number in numbers:
        try:
            found = os.stat(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and not found.st_nlink:
            yield (found.st_dev, found.st_ino), found.st_blocks * 512


@dataclass(frozen=True)
class Usage:
    """Bytes, and numbers of entries."""

    disk: int
    files: int


def folder_usage(folder: Path, most_files: int) -> Usage:
    """What a folder holds, links not followed; the count stops past `most_files`."""
    disk, files, new = 0, 0, [str(folder)]
    while new and files <= most_files:
        try:
            with os.scandir(new.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    disk, files = disk + found.st_blocks * 512, files + 1
                    if stat.S_ISDIR(found.st_mode):
                        new.append(entry.path)
                    if files > most_files:
                        break
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            continue  # gone, or closed by its owner, who can still fill it: the limit of each file holds
        except OSError:  # nested past what a path can say
            return Usage(disk, most_files + 1)
    return Usage(disk, files)


def exceeded(root: int, folder: Path, limits: Limits) -> Ended:
    """The limit that a command's processes or its folder are over, or ""."""
    pids = tree(root)
    if sum(map(_resident, pids)) > limits.memory_bytes:
        return "memory"
    if sum(map(_threads, pids)) > limits.processes + 8:  # the backend's own
        return "processes"
    usage = folder_usage(folder, limits.files)
    nameless = dict(pair for pid in pids for pair in _nameless(pid))
    if usage.disk + sum(nameless.values()) > limits.disk_bytes or usage.files > limits.files:
        return "disk"
    return ""


def threads_of_user(user: int) -> int:
    """Threads of all processes of a user: what the kernel compares with a limit of processes."""
    count = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                count += _threads(int(name))
        except OSError:
            continue
    return count
