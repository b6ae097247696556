"""Where commands of a model run: one command in one folder, with limits, and what came of it in plain facts.

A backend is anything with the three members of `Sandbox`; `rollout.sandbox_choice` picks one that works here. A remote
one fits as well: it would take the folder's files along and bring them back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

Ended = Literal["", "time", "memory", "disk", "processes", "output"]
"""Which limit ended a command from outside; "" for none. A limit of the kernel shows in the exit status instead."""


@dataclass(frozen=True)
class Limits:
    """What one command may use."""

    seconds: float = 10.0
    """Wall clock."""
    memory_bytes: int = 512 * 2**20
    """Address space of each process, and resident memory of all together."""
    processes: int = 64
    """Processes and threads at once."""
    file_bytes: int = 32 * 2**20
    """Size of one file."""
    disk_bytes: int = 128 * 2**20
    """Everything in the folder, and everything in the private /tmp and /dev/shm each."""
    files: int = 10_000
    """Files and folders in the folder."""
    open_files: int = 128
    """Of each process."""
    output_bytes: int = 16 * 2**10
    """Kept of each of stdout and stderr, its start and its end; more is dropped, and far more ends the command."""


@dataclass(frozen=True)
class SandboxResult:
    """What a command came to."""

    exit_status: int
    """As a shell says it: 128 + n for a process that signal n ended."""
    stdout: str
    stderr: str
    stdout_truncated: bool
    stderr_truncated: bool
    ended: Ended
    backend: str

    @property
    def timed_out(self) -> bool:
        return self.ended == "time"

    @property
    def truncated(self) -> bool:
        """Whether some of what it wrote is missing here."""
        return self.stdout_truncated or self.stderr_truncated


DEFAULT_LIMITS = Limits()


class Sandbox(Protocol):
    """Runs commands. Nothing that a command started is left when `run` returns, as far as the backend promises it."""

    @property
    def name(self) -> str:
        """What results and trajectories say of it."""
        ...

    def prepare(self, folder: Path) -> None:
        """Let commands write in a folder that has just been made or has got new files."""
        ...

    async def run(
        self, command: Sequence[str], folder: Path, *, stdin: bytes = b"", limits: Limits = DEFAULT_LIMITS
    ) -> SandboxResult:
        """Run a command with `folder` as its working folder, which it may change.

        RunStopped if the backend itself can't start anything. Cancelling ends the command.
        """
        ...
