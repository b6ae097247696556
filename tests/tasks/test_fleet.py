"""Workers elsewhere as the driver sees them: asked for once, replaced when lost, missed when nobody comes."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from schemas import keys
from schemas.config import Run
from schemas.errors import RequestError, RunStopped
from schemas.manifest import Window
from schemas.quarantine import TaskTrouble
from storage.control import beat, read_worker, register_worker
from storage.memory import MemoryStore
from storage.objects import ObjectStore
from storage.quarantine import change_trouble
from tasks import record, reinforce, warm_up, worker_pool
from tasks.fleet import Fleet
from tasks.request import load, read_config
from tasks.session import opened
from tasks.worker_pool import Asked, PoolUnreachable

BASE = "runs/small/rl-1"


class Pool:
    """A stand-in for Prefect: flow runs by key, whose states the test sets."""

    def __init__(self) -> None:
        self.runs: dict[str, Asked] = {}
        self.keys: dict[str, str] = {}
        self.parameters: list[dict[str, Any]] = []
        self.cancelled: list[str] = []
        self.away = False
        self._ids = map(str, itertools.count())

    def ask(self, name: str, key: str, parameters: dict[str, Any]) -> Asked:
        self._answer()
        if key not in self.keys:
            self.keys[key] = next(self._ids)
            self.parameters.append(parameters)
            self.put(self.keys[key], "SCHEDULED")
        return self.runs[self.keys[key]]

    def look(self, ids: Iterable[str]) -> dict[str, Asked]:
        self._answer()
        return {i: self.runs[i] for i in ids if i in self.runs}

    def standing(self) -> list[Asked]:
        self._answer()
        return [a for a in self.runs.values() if not a.final]

    def cancel(self, id: str) -> None:
        self._answer()
        self.cancelled.append(id)
        self.put(id, "CANCELLED")

    def hint(self) -> str:
        return "is a Prefect worker started?"

    def put(self, id: str, state: str, message: str = "") -> None:
        self.runs[id] = Asked(id, state, message)

    def _answer(self) -> None:
        if self.away:
            raise PoolUnreachable("Prefect's server does not answer")


class Place:
    """A fleet of two on a store in memory, with a clock that the test moves."""

    def __init__(self, config: Run) -> None:
        self.store: ObjectStore = MemoryStore("fleet")
        self.pool, self.now, self.said, self.config = Pool(), 0.0, list[str](), config
        self.fleet = self.another_driver()

    def another_driver(self) -> Fleet:
        return Fleet(
            self.store, BASE, "small", self.config, self.pool, lambda _, e: self.said.append(e["message"]),
            clock=lambda: self.now,
        )  # fmt: skip

    def window(self, *, closed: bool = False) -> None:
        window = Window(version=0, step=0, limit=9, low=0, ended=(), closed=closed, learner="x")
        self.store.put(keys.window(BASE), window.to_bytes())

    def join(self, index: int, id: str) -> int:
        """Let a worker register; returns its number."""
        self.pool.put(id, "RUNNING")
        worker = f"w{index}-{id}"
        return register_worker(self.store, BASE, worker=worker, host="there", pid=1).number

    def beat(self, *numbers: int, state: str = "running") -> None:
        for number in numbers:
            found = read_worker(self.store, BASE, number)
            assert found is not None
            beat(self.store, BASE, found[0].model_copy(update={"beat": found[0].beat + 1, "state": state}))

    def after(self, seconds: float, *beating: int) -> None:
        """Rounds every five seconds for so long; these workers beat meanwhile."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 5, end)
            self.beat(*beating)
            self.fleet.round()


@pytest.fixture
def place(project: Path) -> Place:
    config, _ = read_config(str(project / "small.toml"))
    return Place(config)


def test_workers_are_asked_for_once_whoever_drives(place: Place) -> None:
    place.fleet.round()
    assert [p["first"] for p in place.pool.parameters] == [0, 1]
    assert place.pool.parameters[0] == {"root": place.store.url, "run": "small", "base": BASE, "first": 0}
    place.fleet = place.another_driver()
    place.after(60)
    assert place.fleet.asked == ["0", "1"] and len(place.pool.runs) == 2


def test_a_driver_that_comes_back_asks_anew_for_what_has_ended(place: Place) -> None:
    place.fleet.round()
    place.fleet = place.another_driver()
    place.fleet.leave()
    assert place.pool.cancelled == ["0", "1"] and place.fleet.gone(), "though it has not asked for them itself"
    place.fleet = place.another_driver()
    place.fleet.round()
    assert place.fleet.asked == ["2", "3"]


def test_a_crashed_worker_is_replaced_after_a_growing_pause(place: Place) -> None:
    place.window()
    place.fleet.round()
    numbers = place.join(0, "0"), place.join(1, "1")
    place.after(30, *numbers)
    place.pool.put("1", "CRASHED", "Process exited with status code: -9")
    place.fleet.round()
    assert place.fleet.asked == ["0"] and "status code: -9; asking for another in 1 s" in place.said[-1]
    place.after(5, numbers[0])
    assert place.fleet.asked == ["0", "2"]
    place.pool.put("2", "CRASHED", "again")
    place.fleet.round()
    assert "in 2 s" in place.said[-1]


def test_a_worker_that_keeps_failing_is_given_up_while_others_work(place: Place) -> None:
    place.window()
    place.fleet.round()
    number = place.join(0, "0")
    for _ in range(9):
        place.pool.put(place.fleet.asked[-1], "FAILED", "there is no file mine.py")
        place.after(70, number)
    assert place.fleet.asked == ["0"] and "has failed 9 times and is not asked for again" in " ".join(place.said)
    place.beat(number, state="left")
    place.pool.put("0", "FAILED", "lost")
    with pytest.raises(RunStopped, match=r"no worker has joined run small for 300 s: .*; the last that ended: lost"):
        place.after(400)


def test_when_all_fail_the_run_stops_with_the_cause(place: Place) -> None:
    place.window()
    with pytest.raises(RunStopped, match=r"no worker of run small is left; the last that ended: cause [a-z]"):
        for number in range(60):
            place.after(5)
            for id in place.fleet.asked:
                place.pool.put(id, "FAILED", f"cause {chr(ord('a') + number % 26)}")


def test_when_all_fail_for_one_cause_the_run_stops_soon(place: Place) -> None:
    place.window()
    cause = "ValueError: a bug in process 12"
    with pytest.raises(RunStopped, match=rf"every worker of run small fails, 3 times in a row with: {cause}"):
        for _ in range(20):
            place.after(5)
            for id in place.fleet.asked:
                place.pool.put(id, "FAILED", cause)
    assert place.now <= 60, "not after all nine tries"


def crash(place: Place, times: int) -> None:
    """Whoever was asked for crashes, so often."""
    for _ in range(times):
        place.after(70)
        for id in place.fleet.asked:
            place.pool.put(id, "CRASHED", "Process exited with status code: 137")


def test_crashes_are_forgiven_once_a_task_is_known_to_end_workers(place: Place) -> None:
    place.config = place.config.model_copy(
        update={"rollout": place.config.rollout.model_copy(update={"join_seconds": 10_000.0})}
    )
    place.fleet = place.another_driver()
    place.window()
    crash(place, 7)
    fresh = TaskTrouble(task=0, task_id="poison")
    change_trouble(place.store, BASE, fresh, lambda t: t.model_copy(update={"deadly": "3 workers ended"}))
    before = len(place.said)
    crash(place, 7)
    assert len(place.fleet.asked) == 2
    assert sum("in 1 s" in text for text in place.said[before:]) == 2, "both begin anew"
    with pytest.raises(RunStopped, match=r"no worker of run small is left|every worker of run small fails, 8 times"):
        crash(place, 4)


def test_when_nobody_comes_the_run_stops_with_a_hint(place: Place) -> None:
    place.after(1000)
    place.window()
    with pytest.raises(RunStopped, match=r"no worker has joined run small for 300 s: is a Prefect worker started\?"):
        place.after(400)
    assert place.now > 1300


def test_anybody_who_joined_keeps_the_run_alive(place: Place) -> None:
    place.window()
    number = register_worker(place.store, BASE, worker="w7-by-hand", host="there", pid=1).number
    place.after(1000, number)
    assert place.fleet.asked == ["0", "1"]


def test_a_cancelled_worker_is_not_replaced(place: Place) -> None:
    place.window()
    place.fleet.round()
    numbers = place.join(0, "0"), place.join(1, "1")
    place.pool.put("0", "CANCELLING")
    place.beat(numbers[0], state="left")
    place.after(300, numbers[1])
    assert place.fleet.asked == ["0", "1"], "it is still going"
    place.pool.put("0", "CANCELLED")
    place.after(300, numbers[1])
    assert place.fleet.asked == ["1"] and "goes on without it" in place.said[-1]


def test_a_flow_run_whose_machine_is_gone_is_replaced(place: Place) -> None:
    place.window()
    place.fleet.round()
    numbers = place.join(0, "0"), place.join(1, "1")
    place.after(60, *numbers)
    place.after(350, numbers[0])
    assert place.pool.cancelled == ["1"] and place.fleet.asked == ["0", "2"]


def test_while_prefect_is_away_nobody_is_missed(place: Place) -> None:
    place.window()
    place.fleet.round()
    place.pool.away = True
    for _ in range(5):
        place.now += 200
        with pytest.raises(PoolUnreachable):
            place.fleet.round()
    place.pool.away = False
    place.after(200)
    assert place.fleet.asked == ["0", "1"]


def test_who_left_a_closed_window_is_asked_for_when_it_opens_again(place: Place) -> None:
    place.window()
    place.fleet.round()
    place.window(closed=True)
    for id in ("0", "1"):
        place.pool.put(id, "COMPLETED")
    place.after(600)
    assert place.fleet.asked == [] and place.fleet.gone()
    place.window()
    place.after(5)
    assert place.fleet.asked == ["2", "3"]


@pytest.mark.parametrize("section", ["rollout", "evaluation"])
def test_workers_and_evaluators_elsewhere_need_a_server(place: Place, section: str) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    wanted = getattr(place.config, section).model_copy(update={"infrastructure": "deployment", "every": 1})
    with (
        temporary_settings(restore_defaults={PREFECT_API_URL}),
        pytest.raises(RequestError, match=rf"^{section}.infrastructure = deployment .* set PREFECT_API_URL"),
    ):
        worker_pool.check(place.config.model_copy(update={section: wanted}))
    worker_pool.check(place.config)


def test_a_flow_run_is_final_by_its_state() -> None:
    assert [dataclasses.replace(Asked("0", s)).final for s in ("RUNNING", "CANCELLED")] == [False, True]


@pytest.mark.parametrize("away", [False, True])
def test_a_stopped_run_cancels_its_workers_if_prefect_answers(
    project: Path, root: str, fakes: None, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    monkeypatch.setattr(reinforce, "STOP_SECONDS", 0.5)
    request = load(str(project / "small.toml"), root=root)
    said, pool = list[str](), Pool()
    with opened(request, record.prepare(request), lambda _, e: said.append(e.get("message", ""))) as session:
        warm_up.warm_up(session, "habit")
        base = reinforce.open_stage(session)
        with ThreadPoolExecutor(1) as executor:
            watching = executor.submit(reinforce.roll_out_elsewhere, session, base, pool)
            until(lambda: len(pool.runs) == 2)
            pool.away = away
            session.stop.set()
            assert watching.result(60) == "stopped"
    assert pool.cancelled == ([] if away else ["0", "1"])
    assert any("leave by themselves" in text for text in said) == away


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)
