"""Runs a server for a parent, and ends it with all its children when the parent goes, however it goes.

    python vllm_guard.py FOLDER COMMAND...

The parent holds the other end of standard input. When that closes, the server's process group is ended; when it closes
without a word, since the parent was killed, FOLDER, where the parent put things for the server, is removed too. It is a
script of its own and imports nothing of ours.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

PATIENCE_SECONDS = 10.0
"""How long a server may take to end after SIGTERM."""


def main(folder: str, command: list[str]) -> int:
    """The server's exit code; 0 where the parent went first."""
    for asked in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(asked, signal.SIG_IGN)  # the parent decides: it may still need the server to end in good order
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_defaults)
    words: list[bytes] = []
    parent = threading.Thread(target=_listen, args=(words,), daemon=True)
    parent.start()
    while server.poll() is None and parent.is_alive():
        parent.join(0.1)
    _end_group(server)
    if parent.is_alive():
        return server.returncode
    if not words:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _listen(words: list[bytes]) -> None:
    """Hear the parent until it has nothing more to say."""
    while word := os.read(0, 64):
        words.append(word)


def _defaults() -> None:
    for asked in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(asked, signal.SIG_DFL)


def _end_group(server: subprocess.Popen[bytes]) -> None:
    """End a server and whatever it has started, which may outlive it."""
    _signal(server.pid, signal.SIGTERM)
    end = time.monotonic() + PATIENCE_SECONDS
    while _signal(server.pid, 0) and time.monotonic() < end:
        server.poll()
        time.sleep(0.05)
    _signal(server.pid, signal.SIGKILL)
    server.wait()


def _signal(group: int, number: int) -> bool:
    """Whether there is anybody left in the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
        return True
    return False


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2:])
    sys.exit(code if code >= 0 else 128 - code)
