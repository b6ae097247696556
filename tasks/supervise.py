"""Keeping a process alive for as long as that makes sense.

A child that dies is started anew (with a new id of its own), after a growing pause and a limited number of times. One
cause twice in a row, a wrong request, or a reason of its own ends it: repeating would only spin. A stop is a return.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from schemas.errors import RequestError, RunStopped
from tasks.children import Command, Event, Outcome, run_child
from tasks.patience import START_SECONDS

_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9a-f]*\d[0-9a-f]*")


@dataclass(frozen=True)
class Restarts:
    """How often a child is started anew. A child that lived `healthy` seconds has its restarts forgiven."""

    limit: int = 4
    pause: float = 0.5
    longest_pause: float = 20.0
    alike: int = 2
    """So often in a row one exit code without a word ends it. A cause that the child says itself: always two."""
    healthy: float = 120.0


WORKERS = Restarts(limit=8, alike=8)
"""Of rollout workers: a task that ends them is known for it after three deaths, more where several are in play."""


def keep_running(
    command: Command,
    on_event: Callable[[Event], None],
    *,
    stop: Callable[[], bool],
    silence: float,
    start: float = START_SECONDS,
    grace: float = 10.0,
    restarts: Restarts = Restarts(),
    progress: Callable[[], object] = lambda: None,
    run: Callable[..., Outcome] = run_child,
) -> Outcome:
    """Run a child until it ends well or we stop it. RunStopped (or RequestError) with the cause once it can't go on.

    Where `progress` is another value than at the failure before, those so far have led somewhere: they are forgiven.
    `run`: how it is run once, as `run_child` does.
    """
    failures, same, last_cause, reached = 0, 0, "", progress()
    while True:
        started = time.monotonic()
        outcome = run(command, on_event, stop=stop, silence=silence, start=start, grace=grace)
        if outcome.code == 0 or outcome.stopped:
            return outcome
        if time.monotonic() - started > restarts.healthy:
            failures, last_cause = 0, ""
        if (now := progress()) != reached:
            failures, last_cause, reached = 0, "", now
        failures += 1
        same = same + 1 if alike(outcome.cause, last_cause) else 1
        if outcome.refused:
            raise RequestError(outcome.cause)
        repeated = outcome.code > 0 and same >= (restarts.alike if outcome.silent else 2)
        if outcome.deliberate or repeated or failures > restarts.limit:
            raise RunStopped(_give_up(command, outcome, failures))
        last_cause = outcome.cause
        pause = min(restarts.pause * 2 ** (failures - 1), restarts.longest_pause)
        on_event({"event": "restart", "message": f"{command.name} {outcome.cause}; starting it again in {pause:g} s"})
        if _wait(pause, stop):
            return Outcome(outcome.code, stopped=True)


def alike(cause: str, other: str) -> bool:
    """Whether two causes are one, numbers aside: process ids, addresses and times differ from try to try."""
    return _NUMBER.sub("#", cause) == _NUMBER.sub("#", other)


def _give_up(command: Command, outcome: Outcome, failures: int) -> str:
    if outcome.deliberate:
        return outcome.cause
    times = f" ({failures} times)" if failures > 1 else ""
    return (
        f"{command.name} failed{times}: it {outcome.cause}"
        if outcome.code <= 0
        else f"{command.name} failed{times}: {outcome.cause}"
    )


def _wait(seconds: float, stop: Callable[[], bool]) -> bool:
    """Whether a stop came within the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if stop():
            return True
        time.sleep(0.05)
    return stop()
