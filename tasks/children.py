"""One spawned process of ours: `python -P -m MODULE …`, its JSON lines as events, and its end, however it comes.

A child is a process group of its own, so that a Ctrl-C at the terminal reaches only the driver, which then asks the
children to finish what is safe. The call blocks in the thread that spawned the child, because a parent-death signal on
Linux is tied to that thread.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.output import Event, Output
from tasks.patience import SIGNS, START_SECONDS, Patience

__all__ = ["Command", "Event", "Outcome", "environment", "run_child"]
_DELIBERATE = frozenset({"RunStopped", "Fenced", "LogDamaged", "RequestError", "AuditViolation"})
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
REST_SECONDS = 5.0
"""How long the rest of a dead child's output is read, where something that it started holds its pipes."""


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
    silent: bool = False
    """It had begun its work and ended without a word of its own: by an exit call somewhere, a signal, or a crash."""
    kind: str = ""
    """The class of the error that the child ended with, by its own account; empty where it gave none."""


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
    start: float = START_SECONDS,
    grace: float = 10.0,
    poll: float = 0.1,
) -> Outcome:
    """Run a child to its end, handing its events to `on_event` in this thread.

    When `stop` says so it gets SIGTERM, and SIGKILL after `grace` seconds. So does a child that is hung: that makes no
    progress for `silence` seconds, or for `start` seconds before its first sign. Nothing of its process group is left.
    """
    argv = [sys.executable, "-P", "-m", command.module, *command.arguments]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), process_group=0)
    watch = _Watch(child, on_event, Patience(silence, start))
    try:
        return watch.until_end(stop, grace, poll)
    finally:
        _kill(child, signal.SIGKILL)
        child.wait()
        watch.close()


class _Watch:
    def __init__(self, child: "subprocess.Popen[bytes]", on_event: Callable[[Event], None], patience: Patience) -> None:
        assert child.stdout is not None and child.stderr is not None
        self._child, self._on_event, self._patience = child, on_event, patience
        self._output = Output(child.stdout, child.stderr)
        self._error: Event | None = None
        self._hung = ""

    def until_end(self, stop: Callable[[], bool], grace: float, poll: float) -> Outcome:
        asked: float | None = None
        while self._child.poll() is None:
            self._take_for(poll)
            if asked is None:
                stopping = stop()
                self._hung = "" if stopping else self._patience.hung()
                if stopping or self._hung:
                    asked = time.monotonic()
                    self._ask_to_end()
            elif time.monotonic() - asked > grace:
                _kill(self._child, signal.SIGKILL)
        _kill(self._child, signal.SIGKILL)
        for event in self._output.rest(REST_SECONDS):
            self._take(event)
        return self._outcome(stopped=asked is not None and not self._hung)

    def close(self) -> None:
        self._output.close()

    def _ask_to_end(self) -> None:
        """SIGTERM; a child that is hung writes down first where its threads are."""
        if self._hung and self._patience.begun:
            self._child.send_signal(signal.SIGUSR1)
        _kill(self._child, signal.SIGTERM)

    def _take_for(self, seconds: float) -> None:
        """Deliver what arrives in this time; return at once when all that had arrived is delivered."""
        end = time.monotonic() + seconds
        event = self._output.next(seconds)
        while event is not None:
            self._take(event)
            event = self._output.next(0) if time.monotonic() < end else None

    def _take(self, event: Event) -> None:
        self._patience.note(event)
        if event["event"] == "error":
            self._error = event
        if event["event"] not in SIGNS:
            self._on_event(event)

    def _outcome(self, *, stopped: bool) -> Outcome:
        code = self._child.returncode
        if self._hung:
            self._tell_errors()
            return Outcome(code or -signal.SIGTERM, self._hung)
        if code == 0 or (stopped and code < 0):
            return Outcome(code, stopped=stopped)
        if self._error is not None:
            kind, message = str(self._error.get("kind")), str(self._error.get("message", "failed"))
            refused = self._error.get("exit_code") == 2
            return Outcome(code, message, refused, kind in _DELIBERATE, stopped, kind=kind)
        if code > 0 or -code in _CRASHES:
            self._tell_errors()
        last = self._output.errors.last
        how = f"was killed by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"
        return Outcome(
            code, how + (f" ({last})" if last and code > 0 else ""), stopped=stopped, silent=self._patience.begun
        )

    def _tell_errors(self) -> None:
        """What the child wrote to standard error last: nothing else says why it ended, or where it hung."""
        if text := str(self._output.errors):
            self._on_event({"event": "log", "message": text})


def _kill(child: "subprocess.Popen[bytes]", how: signal.Signals) -> None:
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
