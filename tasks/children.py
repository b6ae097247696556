"""One spawned process of ours: `python -P -m MODULE …`, its JSON lines as events, and its end, however it comes.

A child is a process group of its own, so that a Ctrl-C at the terminal reaches only the driver, which then asks the
children to finish what is safe. The call blocks in the thread that spawned the child, because a parent-death signal on
Linux is tied to that thread.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

Event = dict[str, Any]
_DELIBERATE = frozenset({"RunStopped", "Fenced", "LogDamaged", "RequestError", "AuditViolation"})


@dataclass(frozen=True)
class Command:
    """A module of ours to run as a process. `name` is how people are told of it."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a child ended. `code` is negative for a signal; `cause` is empty when all went well."""

    code: int
    cause: str = ""
    refused: bool = False
    """The child found the request wrong: starting it again would not help."""
    deliberate: bool = False
    """The child stopped with a reason of its own, so that a restart would only repeat it."""
    stopped: bool = False
    """We asked it to stop."""


def environment(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of children: compiled programs are cached, threads are few. What the user set is kept."""
    cache = Path(base.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace" / "jax"
    defaults = {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONUNBUFFERED": "1",
    }
    return defaults | dict(base)


def run_child(
    command: Command,
    on_event: Callable[[Event], None],
    *,
    stop: Callable[[], bool],
    silence: float,
    grace: float = 10.0,
    poll: float = 0.1,
) -> Outcome:
    """Run a child to its end, handing its events to `on_event` in this thread.

    When `stop` says so it gets SIGTERM, and SIGKILL after `grace` seconds; so does a child that says nothing for
    `silence` seconds. Nothing of its process group is left behind.
    """
    argv = [sys.executable, "-P", "-m", command.module, *command.arguments]
    child = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), process_group=0
    )
    watch = _Watch(child, on_event)
    try:
        return watch.until_end(stop, silence, grace, poll)
    finally:
        _kill(child, signal.SIGKILL)
        child.wait()
        watch.join()


class _Watch:
    def __init__(self, child: subprocess.Popen[str], on_event: Callable[[Event], None]) -> None:
        self._child, self._on_event = child, on_event
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._errors: deque[str] = deque(maxlen=30)
        self._error: Event | None = None
        self._heard = time.monotonic()
        self._threads = [
            threading.Thread(target=_pump, args=(child.stdout, self._lines.put), daemon=True),
            threading.Thread(target=_pump, args=(child.stderr, self._errors.append), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def until_end(self, stop: Callable[[], bool], silence: float, grace: float, poll: float) -> Outcome:
        asked: float | None = None
        hung = False
        while self._child.poll() is None:
            self._drain(poll)
            now = time.monotonic()
            if asked is None and (stop() or now - self._heard > silence):
                hung, asked = not stop(), now
                _kill(self._child, signal.SIGTERM)
            elif asked is not None and now - asked > grace:
                _kill(self._child, signal.SIGKILL)
        self.join()
        self._drain(0)
        if hung:
            return Outcome(self._child.returncode, f"said nothing for {silence:g} s and was killed")
        return self._outcome(stopped=asked is not None)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(timeout=2.0)

    def _drain(self, wait: float) -> None:
        """Deliver what has arrived, waiting `wait` seconds for the first line."""
        try:
            while True:
                self._take(self._lines.get(timeout=wait) if wait else self._lines.get_nowait())
                wait = 0.0
        except queue.Empty:
            return

    def _take(self, line: str) -> None:
        self._heard = time.monotonic()
        try:
            event = json.loads(line)
        except ValueError:
            event = {"event": "log", "message": line}
        if not isinstance(event, dict) or "event" not in event:
            event = {"event": "log", "message": line}
        if event["event"] == "error":
            self._error = event
        self._on_event(event)

    def _outcome(self, *, stopped: bool) -> Outcome:
        code = self._child.returncode
        if code == 0 or (stopped and code < 0):
            return Outcome(code, stopped=stopped)
        if self._error is not None:
            deliberate = self._error.get("kind") in _DELIBERATE
            message = str(self._error.get("message", "failed"))
            return Outcome(code, message, self._error.get("exit_code") == 2, deliberate, stopped)
        tail = next((line for line in reversed(self._errors) if line.strip()), "")
        how = f"was killed by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"
        return Outcome(code, how + (f" ({tail.strip()})" if tail and code > 0 else ""), stopped=stopped)


def _pump(stream: IO[str] | None, deliver: Callable[[str], None]) -> None:
    if stream is not None:
        for line in stream:
            if line.strip():
                deliver(line.rstrip("\n"))


def _kill(child: subprocess.Popen[str], how: signal.Signals) -> None:
    """Signal the child's whole group; a group that is gone is fine."""
    try:
        os.killpg(child.pid, how)
    except ProcessLookupError:
        return


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
