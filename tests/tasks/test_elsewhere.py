"""Workers that joined from elsewhere are shown by what their heartbeats say; our own are not shown twice."""

import contextvars
import io
import time

from rich.console import Console

from flows.live import LiveView
from schemas.manifest import WorkerState
from storage.control import beat, register_worker
from storage.memory import MemoryStore
from tasks.elsewhere import WorkersElsewhere, shown

BASE = "runs/r/rl-0"


class Place:
    """A stage with workers that beat when they are told to, and a table of what is said of them."""

    def __init__(self) -> None:
        self.store, self.now, self.own = MemoryStore(), 0.0, set[str]()
        self.view = LiveView("r", Console(file=io.StringIO(), width=160))
        self.watch = WorkersElsewhere(self.store, BASE, self.view, self.own, 60.0, lambda: self.now)

    def worker(self, name: str) -> WorkerState:
        return register_worker(self.store, BASE, worker=name, host="gpu7", pid=1)

    def beats(self, worker: WorkerState, seconds: float, **changes: object) -> WorkerState:
        counters = {"seconds": seconds, "trajectories": seconds, "generated_tokens": 50 * seconds, "idle_seconds": 0.0}
        worker = worker.model_copy(update={"beat": worker.beat + 1, "counters": counters, **changes})
        beat(self.store, BASE, worker)
        return worker

    def table(self) -> str:
        self.watch.look()
        out = io.StringIO()
        Console(file=out, width=160).print(self.view.table())
        return out.getvalue()


def test_figures_come_from_the_heartbeats_until_the_worker_leaves() -> None:
    place = Place()
    state = place.beats(place.worker("w0-a"), 1.0)
    assert "w0-a" not in place.table()
    state = place.beats(state, 3.0)
    shown_now = place.table()
    assert "w0-a on gpu7" in shown_now and " 50 " in shown_now and " 3 " in shown_now
    assert "w0-a on gpu7" in place.table(), "no news is no departure"
    place.beats(state, 4.0, state="left")
    assert "w0-a" not in place.table()


def test_a_silent_one_is_no_longer_shown_and_comes_back() -> None:
    place = Place()
    state = place.beats(place.worker("w0-a"), 1.0)
    place.table()
    state = place.beats(state, 3.0)
    assert "w0-a" in place.table()
    place.now += 61
    assert "w0-a" not in place.table()
    place.beats(state, 70.0)
    assert "w0-a" in place.table()


def test_our_own_are_not_shown_twice() -> None:
    place = Place()
    mine = place.beats(place.worker("w0-a"), 1.0)
    other = place.beats(place.worker("w1-b"), 1.0)
    place.table()
    place.own.add("w0-a")
    place.beats(mine, 2.0), place.beats(other, 2.0)
    found = place.table()
    assert "w0-a" not in found and "w1-b on gpu7" in found


HERE = contextvars.ContextVar("here", default="")
"""As the settings of Prefect are, to which a sink may speak."""


def test_it_looks_by_itself_for_the_time_of_a_block_and_in_its_context() -> None:
    place, contexts = Place(), set[str]()
    place.watch._tell = lambda source, event: (contexts.add(HERE.get()), place.view(source, event))
    state = place.worker("w0-a")
    HERE.set("the block's")
    with shown(place.watch, place.view, 0.01):
        end = time.monotonic() + 60
        while "w0-a on gpu7" not in place.view._latest:
            state = place.beats(state, state.beat + 1.0)
            assert time.monotonic() < end
            time.sleep(0.02)
    assert contexts == {"the block's"}
