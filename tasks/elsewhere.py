"""Figures of workers that this process did not start, as their heartbeats in the store say them.

A worker of our own tells its supervisor. One that joined from another terminal, machine or work pool tells nobody but
the store, so whoever shows the run looks there now and then. Nothing depends on it.
"""

import contextvars
import itertools
import threading
import time
from collections.abc import Callable, Container, Generator
from contextlib import contextmanager

from rollout.counters import rates
from schemas.errors import HeadraceError
from schemas.manifest import WorkerState
from storage.control import read_worker
from storage.objects import ObjectStore
from tasks.children import Event

SECONDS = 5.0
"""Between two looks; one read for each worker elsewhere."""


class WorkersElsewhere:
    """The workers of one RL stage but our own, whose ids are in `own` once they have spoken. `silence`: seconds without
    a heartbeat after which one is no longer shown.

    Who has not changed between two looks is not shown: our own workers are known by then, and dead ones are silent.
    """

    def __init__(
        self,
        store: ObjectStore,
        base: str,
        tell: Callable[[str, Event], None],
        own: Container[str],
        silence: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._base, self._tell, self._silence, self._clock = store, base, tell, silence, clock
        self._own, self._settled = own, set[int]()
        self._seen: dict[int, tuple[WorkerState, float]] = {}

    def look(self) -> None:
        """Read every heartbeat, and tell what has changed since the last look."""
        for number in itertools.count():
            if number in self._settled:
                continue
            found = read_worker(self._store, self._base, number)
            if found is None:
                return
            state, now = found[0], self._clock()
            if state.worker in self._own:
                self._settled.add(number)
            elif state.state == "left":
                self._settled.add(number)
                self._gone(state)
            elif number not in self._seen or state.beat != self._seen[number][0].beat:
                self._show(state, self._seen.get(number))
                self._seen[number] = state, now
            elif now - self._seen[number][1] > self._silence:
                self._gone(state)

    def _show(self, state: WorkerState, before: tuple[WorkerState, float] | None) -> None:
        if before is None or "seconds" not in state.counters:
            return
        event: Event = {"event": "worker", "worker": state.worker, "version": state.version}
        event["trajectories"] = state.counters.get("trajectories", 0.0)
        self._tell(called(state), event | rates(before[0].counters, state.counters))

    def _gone(self, state: WorkerState) -> None:
        self._tell(called(state), {"event": "worker_gone", "worker": state.worker})


def called(state: WorkerState) -> str:
    """How a worker elsewhere is called."""
    return f"{state.worker} on {state.host}"


@contextmanager
def shown(watch: WorkersElsewhere, tell: Callable[[str, Event], None], seconds: float = SECONDS) -> Generator[None]:
    """Look every so often for the time of a block. Where the store fails, a word and no more figures."""
    done = threading.Event()

    def work() -> None:
        try:
            while not done.wait(seconds):
                watch.look()
        except HeadraceError as error:
            tell("workers", {"event": "log", "message": f"workers elsewhere are no longer shown: {error}"})

    here = contextvars.copy_context()  # `tell` may speak to Prefect, whose settings are of this context
    thread = threading.Thread(target=here.run, args=(work,), name="workers elsewhere", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
