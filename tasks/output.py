"""What a child prints, in bounded memory: its events, some of what is none, and how much was left out.

Two threads read the pipes for as long as anybody writes to them, so that a child never waits for a reader that has
given up. A child that says events faster than they are taken is slowed down by its full pipe.
"""

import json
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO, Any

Event = dict[str, Any]
EVENT_BYTES = 256 * 1024
"""The longest line that is read as an event."""
TEXT = 2000
"""Characters of any other line that are kept."""
LINES, LINES_A_SECOND = 200, 20.0
"""Lines that are no events: so many at once, and so many a second over a long time; the others are counted."""
_PIECE = 1 << 16


class Output:
    """Reads what a child writes to its two pipes."""

    def __init__(self, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self._events: queue.Queue[Event] = queue.Queue(maxsize=256)
        self._closed = threading.Event()
        self._noise = _Noise(self._put)
        self._errors = Tail()
        self._threads = [
            threading.Thread(target=read_lines, args=(stdout, self._take), daemon=True),
            threading.Thread(target=read_lines, args=(stderr, self._errors.add), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def next(self, seconds: float) -> Event | None:
        """The next event, waiting for it so long; None if there is none."""
        try:
            return self._events.get(timeout=seconds) if seconds > 0 else self._events.get_nowait()
        except queue.Empty:
            return None

    def rest(self, seconds: float) -> list[Event]:
        """What is left after the child's end. A process that holds the pipe on is not waited for beyond `seconds`."""
        end, found = time.monotonic() + seconds, list[Event]()
        while any(t.is_alive() for t in self._threads) and time.monotonic() < end:
            found += self._waiting()
            self._threads[0].join(0.01)
            self._threads[1].join(0.01)
        return found + self._waiting() + self._noise.left_out()

    def close(self) -> None:
        """Take nothing more; the threads go on reading until the pipes' end and throw it away."""
        self._closed.set()

    @property
    def errors(self) -> "Tail":
        """The end of what was written to standard error."""
        return self._errors

    def _waiting(self) -> list[Event]:
        found = []
        while (event := self.next(0)) is not None:
            found.append(event)
        return found

    def _take(self, line: bytes, size: int) -> None:
        event = as_event(line) if size == len(line) else None
        if event is None:
            self._noise.add(line, size)
        else:
            self._put(event)

    def _put(self, event: Event) -> None:
        while not self._closed.is_set():
            try:
                return self._events.put(event, timeout=0.5)
            except queue.Full:
                continue


class _Noise:
    """Lines that are no events, as events of the kind `log`, as many as are worth it."""

    def __init__(self, put: Callable[[Event], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._put, self._clock = put, clock
        self._free, self._at = float(LINES), clock()
        self._lines = self._bytes = 0

    def add(self, line: bytes, size: int) -> None:
        now = self._clock()
        self._free, self._at = min(LINES, self._free + (now - self._at) * LINES_A_SECOND), now
        if self._free < 1:
            self._lines, self._bytes = self._lines + 1, self._bytes + size
            return
        self._free -= 1
        for event in (*self.left_out(), {"event": "log", "message": text(line, size)}):
            self._put(event)

    def left_out(self) -> list[Event]:
        """What is to be said of the lines that were left out since the last one, if any were."""
        if not self._lines:
            return []
        message = f"… {self._lines:,} more lines ({self._bytes:,} bytes) that are no events were left out"
        self._lines = self._bytes = 0
        return [{"event": "log", "message": message}]


class Tail:
    """The last lines that were written, cut to size."""

    def __init__(self, lines: int = 60) -> None:
        self._kept: deque[str] = deque(maxlen=lines)
        self._count = 0

    def add(self, line: bytes, size: int) -> None:
        self._count += 1
        self._kept.append(text(line, size))

    @property
    def last(self) -> str:
        """The last line."""
        return self._kept[-1].strip() if self._kept else ""

    def __str__(self) -> str:
        kept = list(self._kept)
        more = self._count - len(kept)
        return "\n".join([f"… {more:,} lines before these were left out", *kept] if more else kept)


def read_lines(stream: IO[bytes], deliver: Callable[[bytes, int], None]) -> None:
    """Hand on every line that is not blank until the stream ends, with its size; of a longer one only the start."""
    line, size = bytearray(), 0
    while piece := stream.read1(_PIECE):  # type: ignore[attr-defined]
        *whole, rest = piece.split(b"\n")
        for part in whole:
            _deliver(line + part[: EVENT_BYTES - len(line)], size + len(part), deliver)
            line, size = bytearray(), 0
        line += rest[: EVENT_BYTES - len(line)]
        size += len(rest)
    _deliver(line, size, deliver)
    stream.close()


def _deliver(line: bytes | bytearray, size: int, deliver: Callable[[bytes, int], None]) -> None:
    if line.strip():
        deliver(bytes(line), size)


def as_event(line: bytes) -> Event | None:
    """The event in a line, or None where it holds none."""
    if not line.startswith(b'{"'):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


def text(line: bytes, size: int) -> str:
    """A line as text, whatever its bytes are, cut to size."""
    shown = line[: 4 * TEXT].decode("utf-8", errors="replace").rstrip("\r")
    if len(shown) > TEXT or size > len(line):
        return f"{shown[:TEXT]}… ({size:,} bytes)"
    return shown
