"""The plain process: a command in a session of its own under the kernel's limits, for machines without bubblewrap.

It does NOT protect from
* the network;
* reading and writing whatever its user may: the home folder, a run's store in a local folder, other episodes' files;
* signals to processes of its user, the worker included;
* processes that leave the session (`setsid`): they outlive the command;
* filling disks outside the command's folder, or memory by files in memory.

A worker that runs as root gives its commands to the user `nobody`, which closes what that user may not touch. What it
does keep: time, memory, processes, sizes of files and of the folder, output, a clean environment, and the end of
everything that stays in the session.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from rollout.sandbox import DEFAULT_LIMITS, Limits, SandboxResult
from rollout.sandbox_child import ENVIRONMENT, PATH, limited, prepare, run_child, user
from rollout.sandbox_usage import threads_of_user


class ProcessSandbox:
    """A process with limits."""

    name = "process"

    def prepare(self, folder: Path) -> None:
        prepare(folder)

    async def run(
        self, command: Sequence[str], folder: Path, *, stdin: bytes = b"", limits: Limits = DEFAULT_LIMITS
    ) -> SandboxResult:
        owner = user()
        others = threads_of_user(os.getuid() if owner is None else owner)  # the kernel counts them too
        environment = {"PATH": PATH, "HOME": str(folder), **ENVIRONMENT}
        bounded = limited(command, limits, others + limits.processes)
        return await run_child(self.name, bounded, folder, environment, stdin, limits)
