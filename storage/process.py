"""The edge of a spawned process: JSON lines out, a polite stop in, exit codes, and death with its parent."""

import argparse
import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from schemas.errors import HeadraceError

_stop = threading.Event()
_print_lock = threading.Lock()
_events: TextIO | None = None
_PR_SET_PDEATHSIG = 1
_LONGEST = 8000


def emit(event: str, **fields: Any) -> None:
    """Print one event as a JSON line for the supervisor."""
    line = json.dumps({"event": event, **fields}, default=str)
    with _print_lock:
        print(line, file=_events, flush=True)


def tell(event: str, **fields: Any) -> None:
    """Print an event where somebody supervises this process; nothing elsewhere."""
    if _events is not None:
        emit(event, **fields)


def stop_requested() -> bool:
    """Whether somebody asked this process to finish what is safe and leave."""
    return _stop.is_set()


def request_stop() -> None:
    """Ask this process to stop, as SIGTERM does."""
    _stop.set()


def run_process(main: Callable[[argparse.Namespace], int | None], parser: argparse.ArgumentParser) -> None:
    """Run a process's `main` and exit with its code; failures leave as one `error` event.

    SIGTERM and SIGINT only set the stop flag. SIGUSR1 writes down where every thread is, and so does a crash. The
    process ends itself when its parent dies.
    """
    signal.signal(signal.SIGTERM, lambda *_: _stop.set())
    signal.signal(signal.SIGINT, lambda *_: _stop.set())
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    _die_with_parent()
    _keep_stdout_for_events()
    args = parser.parse_args()
    try:
        code = main(args) or 0
    except HeadraceError as error:
        emit("error", kind=type(error).__name__, message=_cut(str(error)), exit_code=error.exit_code)
        code = error.exit_code
    except Exception as error:
        message, trace = _cut(f"{type(error).__name__}: {error}"), _cut(traceback.format_exc())
        emit("error", kind=type(error).__name__, message=message, exit_code=1, traceback=trace)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a hung user thread must not hold a finished process


def _cut(text: str) -> str:
    """Both ends of a text: an error may bear a whole array in its message, and a supervisor reads no such line."""
    return text if len(text) <= 2 * _LONGEST else f"{text[:_LONGEST]} … {text[-_LONGEST:]}"


def _keep_stdout_for_events() -> None:
    """What user code prints goes to standard error, so that it can't break the event lines."""
    global _events
    sys.stdout.flush()
    _events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)


def _die_with_parent() -> None:
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()


def _watch_parent(parent: int) -> None:
    """The parent may have died before prctl, and other systems have no such call."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
