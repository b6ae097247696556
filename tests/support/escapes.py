"""Attempts to get out of a sandbox, each with the limits first: which of them it stops, printed as JSON.

Run as a program, so that it can run as another user: `python -m support.escapes BACKEND`. It imports no test library.
"""

import asyncio
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from rollout.sandbox import Limits, Sandbox, SandboxResult
from rollout.sandbox_choice import SANDBOXES

LIMITS = Limits(
    seconds=20,
    memory_bytes=256 * 2**20,
    processes=16,
    file_bytes=2**20,
    disk_bytes=4 * 2**20,
    files=200,
    output_bytes=4096,
)
SECRET = "the-secret-of-the-run"


class Place:
    """A sandbox with its folder, beside a home folder and a store that belong to the user who runs this."""

    def __init__(self, sandbox: Sandbox, base: Path) -> None:
        self.sandbox, self.base = sandbox, base
        self.folder, self.home, self.store = base / "folder", base / "home", base / "store"
        for made in (self.folder, self.home, self.store):
            made.mkdir()
        for kept in (self.home, self.store):
            (kept / "secret").write_text(SECRET)
        base.chmod(0o711)  # root's commands run as nobody, who must be able to go through

    async def python(self, code: str, limits: Limits = LIMITS) -> SandboxResult:
        self.sandbox.prepare(self.folder)
        return await self.sandbox.run(["python3", "-I", "-c", code], self.folder, limits=limits)

    async def shell(self, code: str, limits: Limits = LIMITS) -> SandboxResult:
        self.sandbox.prepare(self.folder)
        return await self.sandbox.run(["sh", "-c", code], self.folder, limits=limits)


async def network(place: Place) -> bool:
    """A server on this machine that the command connects to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = await place.python(f"import socket; socket.create_connection(('127.0.0.1', {port}), 5); print('in')")
    return "in" not in done.stdout


async def _reads(place: Place, path: Path) -> bool:
    done = await place.python(f"print(open({str(path)!r}).read())")
    return SECRET in done.stdout


async def home(place: Place) -> bool:
    return not await _reads(place, place.home / "secret")


async def store(place: Place) -> bool:
    return not await _reads(place, place.store / "secret")


async def worker(place: Place) -> bool:
    """The memory and environment of whoever runs the sandbox."""
    done = await place.python(f"print(open('/proc/{os.getpid()}/environ').read())")
    return SECRET not in done.stdout


async def symlink(place: Place) -> bool:
    (place.folder / "way-out").symlink_to(place.store / "secret")
    return SECRET not in (await place.shell("cat way-out")).stdout


async def write_outside(place: Place) -> bool:
    """Files in the system's folder for temporary ones, which nobody counts."""
    target = Path(tempfile.gettempdir(), f"headrace-escape-{os.getpid()}")
    await place.shell(f"echo x > {target}")
    escaped = target.exists()
    if escaped and os.access(target, os.W_OK):
        target.unlink()
    return not escaped


async def fork_bomb(place: Place) -> bool:
    """No more processes at once than allowed, and none left: each child says that it began."""
    code = (
        "import os, time\nfor _ in range(200):\n"
        "    if os.fork() == 0:\n        os.write(1, b'.')\n        time.sleep(60)"
    )
    done = await place.python(code)
    return done.stdout.count(".") <= LIMITS.processes and "BlockingIOError" in done.stderr


async def memory_bomb(place: Place) -> bool:
    done = await place.python("x = bytearray(400 << 20); print('held')")
    return "held" not in done.stdout


async def memory_in_parts(place: Place) -> bool:
    """Processes that are each within the limit, and together are not."""
    code = (
        "import os, time\nfor _ in range(4):\n"
        "    if os.fork() == 0:\n        x = b'x' * (90 << 20); time.sleep(60)\ntime.sleep(60)"
    )
    return (await place.python(code)).ended == "memory"


async def nameless_memory(place: Place) -> bool:
    """Files in memory, which no process maps."""
    done = await place.python("import os; os.write(os.memfd_create('x'), b'x'); print('held')")
    return "held" not in done.stdout


async def large_file(place: Place) -> bool:
    await place.shell("head -c 3000000 /dev/zero > large")
    size = (place.folder / "large").stat().st_size
    return size <= LIMITS.file_bytes


async def disk_fill(place: Place) -> bool:
    code = "i=0; while [ $i -lt 100 ]; do head -c 1000000 /dev/zero > fill$i; i=$((i+1)); sleep 0.05; done"
    return (await place.shell(code)).ended == "disk"


async def unlinked_fill(place: Place) -> bool:
    """Files that are open and in no folder any more."""
    code = (
        "import os, time\nheld = []\nfor i in range(20):\n    f = open('u', 'wb'); f.write(b'x' * 1000000); f.flush()\n"
        "    os.unlink('u'); held.append(f)\ntime.sleep(60)"
    )
    return (await place.python(code)).ended == "disk"


async def many_files(place: Place) -> bool:
    code = "i=0; while [ $i -lt 400 ]; do : > f$i; i=$((i+1)); done; sleep 60"
    return (await place.shell(code)).ended == "disk"


async def output_flood(place: Place) -> bool:
    done = await place.shell("yes")
    return done.ended == "output" and done.stdout_truncated and len(done.stdout) <= LIMITS.output_bytes + 100


async def too_long(place: Place) -> bool:
    done = await place.shell("sleep 60", Limits(seconds=0.5))
    return done.timed_out


async def signal_parent(place: Place) -> bool:
    """Whether a signal could be sent: number 0 harms nobody."""
    done = await place.python(f"import os; os.kill({os.getpid()}, 0); print('sent')")
    return "sent" not in done.stdout


async def _grows(path: Path) -> bool:
    before, deadline = path.stat().st_size, time.monotonic() + 1.0
    while time.monotonic() < deadline:
        await asyncio.sleep(0.1)
        if path.stat().st_size > before:
            return True
    return False


_TICK = "i=0; while [ $i -lt 60 ]; do echo x >> ticks; i=$((i+1)); sleep 0.1; done"


async def background(place: Place) -> bool:
    await place.shell(f"({_TICK}) & while [ ! -s ticks ]; do sleep 0.05; done")
    return not await _grows(place.folder / "ticks")


async def background_session(place: Place) -> bool:
    """A process that has left the session. It ends by itself after six seconds."""
    await place.shell(
        f"setsid sh -c '{_TICK}' < /dev/null > /dev/null 2>&1 & while [ ! -s ticks ]; do sleep 0.05; done"
    )
    return not await _grows(place.folder / "ticks")


async def namespaces(place: Place) -> bool:
    """Becoming root in a namespace of its own, from where more of the kernel can be reached."""
    done = await place.shell("unshare --user --map-root-user id -u")
    return done.stdout.strip() != "0"


ESCAPES: tuple[Callable[[Place], Awaitable[bool]], ...] = (
    network, home, store, worker, symlink, write_outside, fork_bomb, memory_bomb, memory_in_parts, nameless_memory,
    large_file, disk_fill, unlinked_fill, many_files, output_flood, too_long, signal_parent, background,
    background_session, namespaces,
)  # fmt: skip
"""Each says whether it was stopped."""


async def attempted(name: str) -> dict[str, bool]:
    """Every escape by name: whether the backend stopped it."""
    return {e.__name__: await _one(e, SANDBOXES[name]()) for e in ESCAPES}


async def _one(escape: Callable[[Place], Awaitable[bool]], sandbox: Sandbox) -> bool:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as base:
        return await escape(Place(sandbox, Path(base)))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(attempted(sys.argv[1]))))
