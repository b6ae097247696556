"""Workers in this process, on a memory store with a hand-made window and policy and a scripted engine."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.rollouts import BASE, config, load, publish, put_window, sealed, stage, task_of, workers

from rollout import make_engine
from rollout.worker import Worker
from schemas import keys
from schemas.config import Run
from schemas.data import Task
from schemas.errors import RunStopped
from storage.control import create_claim, read_claim, register_worker
from storage.shards import END_MARKER

ENVIRONMENTS = """
import time
from rollout.environments import StepResult, ToolEnvironment
from schemas.messages import Message

class OneBad(ToolEnvironment):
    def step(self, action):
        kind = self.task.extra.get("kind")
        if kind == "raise":
            raise OSError("boom")
        if kind == "hang":
            time.sleep(3600)
        if kind == "flood":
            return StepResult([Message("tool", "x" * 100_000)])
        return StepResult(done=True)
"""


class Site:
    """A stage and the workers on it; the test plays the learner."""

    def __init__(self, folder: Path, run: Run | None = None, **options: Any) -> None:
        (folder / "scripts.py").write_text("from support.rollouts import give_up, solve")
        (folder / "worlds.py").write_text(ENVIRONMENTS)
        self.run = run or config()
        self.store, self.spec = stage(self.run, str(folder), **options)
        self.events: list[dict[str, Any]] = []
        self.stopping = False

    def worker(self, index: int = 0) -> Worker:
        return Worker(
            self.store,
            BASE,
            self.spec,
            load=load,
            index=index,
            report=lambda event, **fields: self.events.append({"event": event, **fields}),
            stop=lambda: self.stopping,
        )

    def start(self, index: int = 0) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.worker(index).run())

    def close(self) -> None:
        """Close the window where it stands."""
        put_window(self.store, 0, version=99, closed=True)

    def samples(self) -> list[tuple[int, int, int]]:
        return sorted((r.group, r.sample, r.attempt) for r in sealed(self.store))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something that must come."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def slow(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Make every scripted answer take this long."""
    plain = make_engine.ScriptedEngine
    monkeypatch.setattr(make_engine, "ScriptedEngine", lambda *a, **k: plain(*a, seconds=seconds, **k))


async def test_worker_plays_the_window_and_leaves(site: Site) -> None:
    put_window(site.store, 3)
    working = site.start()
    await until(lambda: len(sealed(site.store)) == 6)
    site.close()
    await working
    rows = sealed(site.store)
    assert site.samples() == [(g, s, 0) for g in range(3) for s in range(2)]
    assert all(r.status == "succeeded" and r.reward == 1.0 and r.versions == (0,) for r in rows)
    assert {r.task_id for r in rows if r.group == 1} == {task_of(1).id}
    (state,) = workers(site.store)
    assert (state.state, state.version) == ("left", 0)
    assert state.counters["trajectories"] == 6
    assert state.next_seq == len(site.store.list(f"{BASE}/trajectories/"))
    assert {e["event"] for e in site.events} == {"worker"}
    assert site.events[-1]["worker"] == state.worker


async def test_it_registers_before_the_window_opens_and_waits_for_it(site: Site) -> None:
    working = site.start()
    await until(lambda: len(workers(site.store)) == 1)
    assert not site.store.list(f"{BASE}/claims/")
    put_window(site.store, 1)
    await until(lambda: len(sealed(site.store)) == 2)
    site.close()
    await working


async def test_two_workers_share_the_groups(site: Site) -> None:
    put_window(site.store, 12)
    working = [site.start(i) for i in range(2)]
    await until(lambda: len(sealed(site.store)) == 24)
    site.close()
    await asyncio.gather(*working)
    assert site.samples() == [(g, s, 0) for g in range(12) for s in range(2)]
    assert {r.worker for r in sealed(site.store)} == {w.worker for w in workers(site.store)}


async def test_nothing_starts_with_an_older_policy_than_the_windows(site: Site) -> None:
    put_window(site.store, 2)
    working = site.start()
    await until(lambda: len(sealed(site.store)) == 4)
    publish(site.store, 3)
    put_window(site.store, 6, version=3, low=2)
    await until(lambda: len(sealed(site.store)) == 12)
    site.close()
    await working
    assert {r.group: r.versions for r in sealed(site.store)} == {0: (0,), 1: (0,)} | dict.fromkeys(range(2, 6), (3,))
    assert workers(site.store)[0].version == 3


async def test_removed_weights_are_looked_up_again(site: Site) -> None:
    publish(site.store, 1)
    site.store.delete(f"{keys.policy_weights(BASE, 1, 'L')}/weights")
    put_window(site.store, 2, version=1)
    working = site.start()
    await asyncio.sleep(0.1)
    assert not sealed(site.store)
    publish(site.store, 2)
    put_window(site.store, 2, version=2)
    await until(lambda: len(sealed(site.store)) == 4)
    site.close()
    await working
    assert {r.versions for r in sealed(site.store)} == {(2,)}


async def test_a_window_that_names_no_policy_stops_the_worker(site: Site) -> None:
    put_window(site.store, 2, version=5)
    with pytest.raises(RunStopped, match="the window names policy 5"):
        await site.worker().run()
    assert workers(site.store)[0].state == "left"


async def test_in_flight_updates_reach_running_episodes_and_drain_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow(monkeypatch, 0.15)
    for mode, spans in (("in_flight", {(0, 1)}), ("drain", {(0,)})):
        folder = tmp_path / mode
        folder.mkdir()
        site = Site(folder, config(rollout={"weight_update": mode}))
        put_window(site.store, 2)
        working = site.start()
        await until(lambda s=site: len(s.store.list(f"{BASE}/claims/")) == 2)
        await asyncio.sleep(0.05)
        publish(site.store, 1)
        put_window(site.store, 4, version=1)
        await until(lambda s=site: len(sealed(s.store)) == 8)
        site.close()
        await working
        rows = sealed(site.store)
        assert {r.versions for r in rows if r.group < 2} == spans
        assert {r.versions for r in rows if r.group >= 2} == {(1,)}


async def test_groups_that_ended_are_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch, 0.5)
    put_window(site.store, 2)
    working = site.start()
    await until(lambda: any(e["in_flight"] == 4 for e in site.events))
    put_window(site.store, 3, low=1)
    await until(lambda: len(sealed(site.store)) == 4)
    site.close()
    await working
    assert {r.group for r in sealed(site.store)} == {1, 2}
    assert workers(site.store)[0].counters["abandoned"] == 2


@pytest.mark.parametrize("how", ["close", "stop"])
async def test_closing_and_stopping_seal_what_is_finished_and_count_the_rest(
    site: Site, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    slow(monkeypatch, 0.2)
    site.spec = site.spec.model_copy(
        update={"config": config(rollout={"seal_seconds": 60.0, "max_concurrency": 2}).model_dump(mode="json")}
    )
    put_window(site.store, 4)
    working = site.start()
    await until(lambda: any(e["trajectories"] >= 2 for e in site.events))
    if how == "close":
        site.close()
    else:
        site.stopping = True
    await working
    (state,) = workers(site.store)
    assert state.state == "left"
    assert len(sealed(site.store)) == state.counters["trajectories"] >= 2
    assert state.counters["abandoned"] == 2


async def test_the_end_marker_stops_a_worker(site: Site) -> None:
    working = site.start()
    await until(lambda: len(workers(site.store)) == 1)
    site.store.create(keys.shard(BASE, workers(site.store)[0].worker, 0), END_MARKER)
    put_window(site.store, 2)
    await working
    (state,) = workers(site.store)
    assert (state.state, state.next_seq) == ("left", 0)
    assert state.counters["abandoned"] == 4


async def test_a_restarted_worker_finishes_a_dead_ones_groups(site: Site) -> None:
    dead = register_worker(site.store, BASE, worker="dead", host="h", pid=1)
    for group in range(2):
        create_claim(site.store, BASE, group, dead.worker, 0)
    put_window(site.store, 3)
    working = site.start()
    await until(lambda: len(sealed(site.store)) == 6)
    site.close()
    await working
    assert site.samples() == sorted([(2, s, 0) for s in range(2)] + [(g, s, 3) for g in range(2) for s in range(2)])
    claim, _ = read_claim(site.store, BASE, 0) or pytest.fail("no claim")
    assert claim.owners == ("dead", workers(site.store)[1].worker)
    assert workers(site.store)[1].counters["takeovers"] == 2


async def test_failing_worlds_cost_their_own_episodes(tmp_path: Path) -> None:
    kinds = ["raise", "hang", "flood", "fine", "fine"]
    tasks = [Task(f"t{i}", "1+1=?", "?", {"kind": k}) for i, k in enumerate(kinds)]
    run = config(
        environment={"environment": "worlds:OneBad", "step_seconds": 0.2},
        rollout={"script": "scripts:give_up", "attempts": 2, "max_concurrency": 20},
    )
    site = Site(tmp_path, run, tasks=tasks)
    put_window(site.store, 5)
    working = site.start()
    await until(lambda: len(sealed(site.store)) == 4 + 3 * 4)
    site.close()
    await working
    found = {k: {r.status for r in sealed(site.store) if tasks[int(r.task_id[1:])].extra["kind"] == k} for k in kinds}
    assert found == {
        "raise": {"environment_error"},
        "hang": {"environment_timeout"},
        "flood": {"flooded"},
        "fine": {"succeeded"},
    }
    assert workers(site.store)[0].counters["failed"] == 12


async def test_a_worker_on_which_everything_fails_says_why_and_seals_the_evidence(tmp_path: Path) -> None:
    site = Site(tmp_path, config(rollout={"script": "scripts:give_up"}, environment={"environment": "worlds:OneBad"}))
    (tmp_path / "worlds.py").write_text(ENVIRONMENTS.replace('kind == "raise"', "True"))
    put_window(site.store, 9)
    with pytest.raises(RunStopped, match="step raised OSError: boom"):
        await site.worker().run()
    assert len(sealed(site.store)) >= 16
    assert workers(site.store)[0].state == "left"
