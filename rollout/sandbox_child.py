"""A child process of a sandbox: fed, read up to a limit, watched, and ended with its session, whatever happens."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollout.sandbox import Ended, Limits, SandboxResult
from rollout.sandbox_usage import exceeded, tree
from schemas.errors import RunStopped

NOBODY = 65534
"""Whom commands run as when the worker is root: the kernel excepts root from limits of processes."""
PATH = "/usr/local/bin:/usr/bin:/bin"
ENVIRONMENT = {"LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
"""Python takes a compiled file for current if source and file agree in size and second: edits would go unseen."""
LOOK_SECONDS = 0.1
FLOOD = 64
"""A command ends once it has written this many times what is kept."""
GRACE = 5.0
"""Seconds for pipes to close once their processes have been killed."""


def user() -> int | None:
    """The user that commands get; None: the worker's own."""
    return NOBODY if os.getuid() == 0 else None


def prepare(folder: Path) -> None:
    """Give a folder and everything in it to whom commands run as. Links are not followed."""
    owner = user()
    if owner is None:
        return
    os.chown(folder, owner, owner)
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            os.chown(os.path.join(base, name), owner, owner, follow_symlinks=False)


def limited(command: Sequence[str], limits: Limits, processes: int) -> list[str]:
    """The command under limits of the kernel, which it can't raise again."""
    return [
        "prlimit",
        f"--as={limits.memory_bytes}",
        f"--nproc={processes}",
        f"--fsize={limits.file_bytes}",
        f"--nofile={limits.open_files}",
        "--core=0",
        "--memlock=0",
        "--msgqueue=0",
        "--",
        *command,
    ]


@dataclass
class _Output:
    """The start and the end of an output, of at most `most` bytes together."""

    most: int
    start: bytearray = field(default_factory=bytearray)
    end: bytearray = field(default_factory=bytearray)
    seen: int = 0

    def add(self, chunk: bytes) -> None:
        self.seen += len(chunk)
        room = self.most - self.most // 2 - len(self.start)
        self.start += chunk[:room]
        self.end += chunk[room:]
        del self.end[: max(0, len(self.end) - self.most // 2)]

    @property
    def cut(self) -> bool:
        return self.seen > self.most

    @property
    def text(self) -> str:
        between = f"\n... {self.seen - self.most} bytes left out ...\n".encode() if self.cut else b""
        return bytes(self.start + between + self.end).decode(errors="replace")


async def run_child(
    backend: str,
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    stdin: bytes,
    limits: Limits,
    files: Sequence[int] = (),
) -> SandboxResult:
    """Run `command` in a session of its own, until it or one of its limits ends. `files` are handed on to it."""
    owner = user()
    starting = asyncio.create_subprocess_exec(
        *command, cwd=folder, env=dict(environment), start_new_session=True, pass_fds=tuple(files),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        user=owner, group=owner, extra_groups=None if owner is None else (),
    )  # fmt: skip
    try:
        process = await started(asyncio.ensure_future(starting))
    except OSError as error:
        raise RunStopped(f"the sandbox `{backend}` can't start `{command[0]}` in {folder}: {error}") from error
    outputs = _Output(limits.output_bytes), _Output(limits.output_bytes)
    pipes = [
        asyncio.ensure_future(_feed(process, stdin)),
        asyncio.ensure_future(_drain(process.stdout, outputs[0])),
        asyncio.ensure_future(_drain(process.stderr, outputs[1])),
    ]
    try:
        ended = await _watched(process, folder, outputs, limits)
    finally:
        await _end(process, pipes)
    return _result(backend, process.returncode, outputs, ended)


async def started(starting: asyncio.Task[asyncio.subprocess.Process]) -> asyncio.subprocess.Process:
    """The process, which is ended if its caller is cancelled meanwhile: asyncio would end no more than its leader."""
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _end(await starting, [])
        raise


async def _end(process: asyncio.subprocess.Process, pipes: Sequence[asyncio.Task[None]]) -> None:
    """Kill a session and let go of its pipes."""
    kill_session(process)
    with contextlib.suppress(TimeoutError):  # someone outside the session holds a pipe: it is given up
        await asyncio.wait_for(asyncio.gather(process.wait(), *pipes, return_exceptions=True), GRACE)
    for pipe in pipes:
        pipe.cancel()
    process._transport.close()  # type: ignore[attr-defined]  # the only way to let go of pipes that stay open


def kill_session(process: asyncio.subprocess.Process) -> None:
    """End the session's process group, which exists while its leader is not waited for, or has members left.

    And all descendants: what bubblewrap has just started has a session of its own, and does not die with it yet. Their
    leader stands still meanwhile, so that it starts no more.
    """
    _signal(os.killpg, process.pid, signal.SIGSTOP)
    descendants = tree(process.pid)[1:] if process.returncode is None else []
    _signal(os.killpg, process.pid, signal.SIGKILL)
    for pid in descendants:
        _signal(os.kill, pid, signal.SIGKILL)


def _signal(send: Callable[[int, int], None], pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(pid, number)


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it reads no further
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _drain(stream: asyncio.StreamReader | None, output: _Output) -> None:
    assert stream is not None
    while chunk := await stream.read(65536):
        output.add(chunk)


async def _watched(
    process: asyncio.subprocess.Process, folder: Path, outputs: tuple[_Output, _Output], limits: Limits
) -> Ended:
    """Wait for the end of the command, or for a limit that it is over, which is returned."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + limits.seconds
    waiting = asyncio.ensure_future(process.wait())
    try:
        while True:
            await asyncio.wait({waiting}, timeout=max(0.0, min(LOOK_SECONDS, deadline - clock())))
            over = await asyncio.to_thread(exceeded, process.pid, folder, limits)
            if over or process.returncode is not None:  # `wait` also waits for whoever holds a pipe
                return over
            if max(o.seen for o in outputs) > FLOOD * limits.output_bytes:
                return "output"
            if clock() >= deadline:
                return "time"
    finally:
        waiting.cancel()


def _result(backend: str, status: int | None, outputs: tuple[_Output, _Output], ended: Ended) -> SandboxResult:
    status = 128 + signal.SIGKILL if status is None else status
    out, err = outputs
    status = 128 - status if status < 0 else status
    return SandboxResult(status, out.text, err.text, out.cut, err.cut, ended, backend)
