"""Several processes that are one child: started together, and ended together when one of them ends badly.

They find each other at an address of this machine, which is new for every start. What ended them is what ended the
first of them: the others only lost a partner.
"""

import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tasks.children import Command, Event, Outcome, run_child
from tasks.patience import START_SECONDS


def run_members(
    command: Command,
    on_event: Callable[[Event], None],
    *,
    count: int,
    stop: Callable[[], bool],
    silence: float,
    start: float = START_SECONDS,
    grace: float = 10.0,
) -> Outcome:
    """`tasks.children.run_child` for `count` processes of a command. Each is told which it is by `--process` and
    `--address`. The events are those of the first; of the others only what they log."""
    address, members = f"127.0.0.1:{_free_port()}", _Members(stop)

    def run(number: int) -> None:
        own = replace(command, arguments=(*command.arguments, "--process", str(number), "--address", address))
        sink = members.logged(number, on_event) if number else on_event
        try:
            members.ended(
                number, run_child(own, sink, stop=members.stopping, silence=silence, start=start, grace=grace)
            )
        finally:
            members.over(number)

    # Each child is waited for in the thread that started it, since a parent's death is told by thread.
    with ThreadPoolExecutor(count - 1, "member") as threads:
        others = [threads.submit(run, number) for number in range(1, count)]
        run(0)
    for other in others:
        other.result()
    return members.outcome()


class _Members:
    """How the processes ended, in the order in which they did."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        self._stop, self._lock = stop, threading.Lock()
        self._ends: list[tuple[int, Outcome]] = []
        self._broken = threading.Event()

    def stopping(self) -> bool:
        """Whether the processes are to end: somebody said so, or one of them is gone."""
        return self._broken.is_set() or self._stop()

    def ended(self, number: int, outcome: Outcome) -> None:
        with self._lock:
            self._ends.append((number, outcome))
        if outcome.code:
            self._broken.set()

    def over(self, number: int) -> None:
        """The first process has nothing left to run with, or a thread has failed: nobody is left running."""
        if not any(known == number for known, _ in self._ends):
            self._broken.set()

    def logged(self, number: int, on_event: Callable[[Event], None]) -> Callable[[Event], None]:
        """Passes on what a process other than the first one logs, until the end of one has made the others crash."""

        def sink(event: Event) -> None:
            if event["event"] == "log" and not self._broken.is_set():
                on_event({**event, "message": f"process {number}: {event.get('message')}"})

        return sink

    def outcome(self) -> Outcome:
        """That of all: well if all ended well, else the end that the others followed from."""
        first = next(outcome for number, outcome in self._ends if number == 0)
        if not self._broken.is_set() or self._stop():
            return first
        number, cause = min(self._ends, key=lambda end: _rank(end[1]))
        lost = number and not cause.kind
        return replace(
            cause, cause=f"lost its process {number}, which {cause.cause}" if lost else cause.cause, stopped=False
        )


def _rank(outcome: Outcome) -> int:
    """The lower, the likelier it is a cause rather than a consequence."""
    if not outcome.code or outcome.stopped:
        return 4
    if outcome.kind == "PartnerLost":
        return 3
    if outcome.code == -signal.SIGABRT:  # JAX aborts a process whose coordinator is gone
        return 2
    return 0 if outcome.deliberate or outcome.code < 0 else 1  # what JAX raises of a lost partner has many names


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
