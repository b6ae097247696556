"""Bubblewrap: a command in Linux namespaces of its own, where nothing exists but the system's programs and its folder.

No network, its own process numbers (so everything in it ends with it), a read-only /usr, private /tmp and /dev/shm of
limited size, no further namespaces, and none of the calls that take memory past the limits. It works for root, whose
commands become `nobody`, and for ordinary users where the kernel lets them make namespaces.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rollout.sandbox import DEFAULT_LIMITS, Limits, SandboxResult
from rollout.sandbox_child import ENVIRONMENT, PATH, limited, prepare, run_child
from rollout.sandbox_seccomp import filter_file

FOLDER = "/workspace"
"""Where a command sees its folder."""


def _system() -> list[str]:
    """What a command sees of the machine: programs and libraries, read-only."""
    out = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            out += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            out += ["--ro-bind", str(path), str(path)]
    for name in ("/etc/alternatives", "/etc/ld.so.cache"):
        out += ["--ro-bind-try", name, name]
    python = _own_python()
    return [*out, "--ro-bind", python, python] if python else out


def _own_python() -> str:
    """The folder of the worker's Python, if it is outside /usr and the command's user can get there; else ""."""
    path = Path(sys.base_prefix).resolve()
    if path.is_relative_to("/usr") or len(path.parts) < 3:
        return ""
    reachable = os.getuid() != 0 or all(p.stat().st_mode & 0o001 for p in (path, *path.parents))
    return str(path) if reachable else ""


class BubblewrapSandbox:
    """Commands under `bwrap`."""

    name = "bubblewrap"

    def prepare(self, folder: Path) -> None:
        prepare(folder)

    async def run(
        self, command: Sequence[str], folder: Path, *, stdin: bytes = b"", limits: Limits = DEFAULT_LIMITS
    ) -> SandboxResult:
        with filter_file() as seccomp:
            files = [] if seccomp is None else [seccomp]
            command = self.wrapped(command, folder, limits, files)
            outside = {"PATH": PATH}
            return await run_child(self.name, command, folder, outside, stdin, limits, files)

    def wrapped(self, command: Sequence[str], folder: Path, limits: Limits, files: Sequence[int]) -> list[str]:
        """The command line that runs `command` inside; `files` are open files with filters of system calls."""
        python = _own_python()
        path = PATH + (f":{python}/bin" if python else "")
        tmpfs = ["--size", str(limits.disk_bytes), "--tmpfs"]
        return [
            "bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session",
            "--clearenv", "--setenv", "PATH", path, "--setenv", "HOME", FOLDER,
            *(part for name, value in ENVIRONMENT.items() for part in ("--setenv", name, value)),
            *_system(),
            "--proc", "/proc", "--dev", "/dev", *tmpfs, "/dev/shm", "--remount-ro", "/dev", *tmpfs, "/tmp",
            "--bind", str(folder), FOLDER, "--chdir", FOLDER, "--remount-ro", "/",
            *(part for number in files for part in ("--seccomp", str(number))),
            "--", *limited(command, limits, limits.processes),
        ]  # fmt: skip
