"""Children that say too much, too little or the wrong thing. `python -m rude_processes KIND`."""

import argparse
import os
import re
import subprocess
import sys
import time

from storage.process import emit, run_process, stop_requested
from storage.pulse import beat, busy

MEGABYTE = 1 << 20


def say(data: bytes) -> None:
    """Write to what was standard output when the process began, whole."""
    while data:
        data = data[os.write(1, data) :]


def flood() -> None:
    """200 MB in lines of 100 bytes, an event in their midst and one after them."""
    lines = (b"all work and no play" + b"." * 79 + b"\n") * (MEGABYTE // 100)
    for number in range(200):
        say(lines)
        if number == 100:
            say(b'{"event": "middle"}\n')
    say(b'{"event": "end"}\n')


def complain() -> None:
    """100 MB to standard error, then the last words."""
    line = b"x" * 99 + b"\n"
    for _ in range(100):
        os.write(2, line * (MEGABYTE // 100))
    os.write(2, b"the last words\n")
    sys.exit(7)


def long_lines() -> None:
    """Lines of 8 MB: text, and something that begins like an event."""
    say(b"y" * 8 * MEGABYTE + b"\n")
    say(b'{"event": "log", "message": "' + b"z" * 8 * MEGABYTE + b'"}\n')
    say(b'{"event": "end"}\n')


def bytes_of_any_kind() -> None:
    say(b"\xff\xfe caf\xe9 \x00\n")
    say(b'{"event": "log", "message": "\xff"}\n')
    say(b'{"event": "end"}\n')


def half_lines() -> None:
    """An event in pieces, and a line that never ends."""
    for piece in (b'{"event": ', b'"pie', b'ces"}', b'\n{"event": "end"}\nno end'):
        say(piece)
        time.sleep(0.05)


def no_events() -> None:
    for line in (
        b'{"step": 1}', b"[1, 2]", b'{"event": 5}', b'{"event": null}', b'{"event": {"a": 1}}', b'{"event": "x"',
        b"null", b'{"event": ' + b"[" * 50_000, b'{"event": "busy"}', b'{"event": "busy", "id": [], "seconds": "long"}',
        b'{"event": "step", "step": "x", "staleness_max": "y", "tokens_per_second": []}', b'{"event": "end"}',
    ):  # fmt: skip
        say(line + b"\n")


def traceback() -> None:
    """What Python prints of an error before `run_process` is there to catch it."""
    import rude_processes  # noqa: F401

    raise RuntimeError("x" * 1_000_000)


def holder() -> None:
    """Leave a process behind that has a session of its own and holds the pipes."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"], start_new_session=True)
    say(b'{"event": "end"}\n')


def chatty_events() -> None:
    """More events than anybody takes, until it is told to end."""
    while not stop_requested():
        beat()
        emit("figure", text="x" * 1000)


def stuck() -> None:
    """Some progress, then a loop that gets nowhere, with a thread that goes on talking."""
    beat()
    while True:
        emit("worker", version=0, in_flight=1, trajectories=0)
        time.sleep(0.02)


def announced() -> None:
    """Long work that was announced, without a word meanwhile."""
    with busy("compiling", 60):
        time.sleep(2.5)


def late() -> None:
    """Work that takes longer than was announced."""
    with busy("saving", 0.5):
        time.sleep(60)


def locked() -> None:
    """C code that never gives the interpreter's lock back: no thread of ours runs, no signal is heeded."""
    with busy("matching", 0.5):
        re.match(r"(a+)+$", "a" * 60 + "b")


def works() -> None:
    """Progress without end, until it is told to stop; says who it is once the first was seen."""
    beat()
    emit("ready", pid=os.getpid())
    while not stop_requested():
        beat()
        time.sleep(0.05)


def mute() -> None:
    """No sign of life at all."""
    time.sleep(60)


def huge_error() -> None:
    raise ValueError("n" * 5_000_000)


PLAIN = {flood, complain, long_lines, bytes_of_any_kind, half_lines, no_events, traceback, holder}

if __name__ == "__main__":
    chosen = globals()[sys.argv[1]]
    if chosen in PLAIN:
        chosen()
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("kind")
        run_process(lambda args: chosen(), parser)
