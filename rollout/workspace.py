"""The working folder of one episode: made at its start, changed by its commands and tools, removed at its end."""

import asyncio
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollout.hooks import to_its_end
from rollout.sandbox import DEFAULT_LIMITS, Limits, Sandbox, SandboxResult
from rollout.workspace_files import exists, read_text, write_text

MAX_FILE = 2**20
"""Bytes of a file that tools read or write."""
REMOVE_SECONDS = 60.0


class Workspace:
    """A folder and the sandbox that runs commands in it. `open` and `close` block: call them in a thread."""

    def __init__(self, sandbox: Sandbox, limits: Limits = DEFAULT_LIMITS) -> None:
        self.sandbox, self.limits = sandbox, limits
        self._folder: Path | None = None
        self._closed = False
        self._running = asyncio.Lock()

    @property
    def folder(self) -> Path:
        if self._folder is None:
            raise RuntimeError("the workspace is not open: the environment's reset opens it")
        return self._folder

    def open(self, files: Mapping[str, str]) -> None:
        """Make the folder with these files, by relative path. It may be closed meanwhile, by who waits no longer."""
        self._folder = folder = Path(tempfile.mkdtemp(prefix="headrace-workspace-"))
        try:
            for path, text in files.items():
                write_text(folder, path, text)
            self.sandbox.prepare(folder)
        finally:
            if self._closed:
                _remove(folder)

    async def run(self, command: Sequence[str], *, stdin: bytes = b"") -> SandboxResult:
        """Run a command in the folder; one at a time."""
        async with self._running:
            return await self.sandbox.run(command, self.folder, stdin=stdin, limits=self.limits)

    def read(self, path: str) -> str:
        """The text of a file in the folder; ToolError says why not."""
        return read_text(self.folder, path, MAX_FILE)

    def write(self, path: str, text: str) -> None:
        """Write a file in the folder; ToolError says why not."""
        write_text(self.folder, path, text)

    def exists(self, path: str) -> bool:
        return exists(self.folder, path)

    async def close(self) -> None:
        """Remove the folder, once what runs in it has ended; also where nobody waits for that any more."""
        await to_its_end(self._close())

    async def _close(self) -> None:
        async with self._running:
            self._closed = True
            folder, self._folder = self._folder, None
            if folder is not None:
                await asyncio.to_thread(_remove, folder)


def _remove(folder: Path) -> None:
    """Also what its owner has closed, and nests deeper than Python can walk; links are not followed."""
    remove, permit = ["rm", "-rf", "--", str(folder)], ["chmod", "-R", "u+rwX", "--", str(folder)]
    for command in (remove, permit, remove):
        subprocess.run(command, timeout=REMOVE_SECONDS, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if not folder.exists():
            return
