"""A task that ends its worker, or holds the interpreter, costs three workers' episodes and is then played no more."""

import os
import threading
from collections import Counter
from pathlib import Path

import pytest
from support import protocol
from support.projects import FAKES
from support.protocol import BASE, METADATA, trajectory
from support.rollouts import TASKS, config, put_tasks, sealed, stage, task_of

from rollout.claims import ClaimBoard
from schemas import keys
from schemas.config import Run
from schemas.manifest import Window
from schemas.trajectory import Status
from storage import audit, control
from storage.control import read_window
from storage.memory import MemoryStore
from storage.open import open_store
from storage.quarantine import troubles
from storage.shards import ShardWriter
from tasks.children import Command, Event
from tasks.supervise import WORKERS, keep_running

POISON = task_of(0).id
WORLD = """
import os
from rollout.environments import ToolEnvironment

class World(ToolEnvironment):
    def step(self, action):
        if self.task.id == "POISON":
            FAULT
        return super().step(action)
"""
WINDOW = Window(version=0, step=0, limit=3, low=0, ended=(), closed=False, learner="L")


class Site:
    """Boards of workers that come one after the other, on one clock."""

    def __init__(self) -> None:
        self.store, self.now = MemoryStore(), 0.0

    def board(self, name: str) -> ClaimBoard:
        control.register_worker(self.store, BASE, worker=name, host="h", pid=1)
        run = config(rollout={"lease_seconds": 4.0})
        return ClaimBoard(self.store, BASE, name, run, lambda: self.now)

    def seal(self, worker: str, group: int) -> None:
        writer = ShardWriter(self.store, BASE, worker, METADATA, seal_rows=9, seal_bytes=10**9, seal_seconds=1)
        for sample in range(2):
            writer.add(trajectory(group, sample, worker=worker))
        writer.seal()

    def outwait(self, board: ClaimBoard) -> None:
        for _ in range(6):
            board.watch(WINDOW, set())
            self.now += 1.0


def test_a_group_that_two_owners_died_with_is_played_alone_and_after_a_third_not_at_all() -> None:
    site = Site()
    first = site.board("a")
    assert [first.next(WINDOW) is not None for _ in range(2)] == [True, True]
    second = site.board("b")
    taken = second.next(WINDOW)
    assert taken is not None and taken.group == 2
    site.outwait(second)
    orphans = [second.next(WINDOW, idle=False) for _ in range(2)]
    assert [(o.group, o.deaths, o.alone) for o in orphans if o] == [(0, 1, False), (1, 1, False)]
    site.seal("b", 2)
    third = site.board("c")
    assert third.next(WINDOW) is None
    site.outwait(third)
    assert third.next(WINDOW, idle=False) is None  # what is in play ends first
    alone = third.next(WINDOW)
    assert alone is not None and (alone.group, alone.alone, alone.deadly) == (0, True, "")
    fourth = site.board("d")
    assert fourth.next(WINDOW) is None
    site.outwait(fourth)
    found = [fourth.next(WINDOW) for _ in range(2)]
    assert [(f.group, bool(f.deadly)) for f in found if f] == [(0, True), (1, False)]  # 1 was not in play with "c"


def test_who_left_has_not_died() -> None:
    site = Site()
    for name in "abc":
        board = site.board(name)
        assert board.next(WINDOW) is not None or name != "a"
        site.outwait(board)
        state = control.read_worker(site.store, BASE, "abc".index(name))
        assert state is not None
        control.beat(site.store, BASE, state[0].model_copy(update={"state": "left"}))
    last = site.board("d")
    last.next(WINDOW)
    site.outwait(last)
    while (found := last.next(WINDOW)) is not None:
        assert not found.alone


def settings() -> Run:
    rollout = {"lease_seconds": 2.0, "heartbeat_seconds": 0.1, "max_concurrency": 8}
    rl = {"steps": 10, "groups_per_batch": 2, "group_size": 2, "window_seconds": 0, "idle_seconds": 200.0}
    return config(environment={"environment": "world:World"}, rollout=rollout, rl=rl)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["os._exit(3)", "os.kill(os.getpid(), 11)", "sum(range(10**15))"])
def test_a_task_that_ends_workers_is_quarantined_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FAKES), str(FAKES.parents[1])]), prepend=os.pathsep)
    (tmp_path / "scripts.py").write_text("from support.rollouts import solve")
    (tmp_path / "world.py").write_text(WORLD.replace("POISON", POISON).replace("FAULT", fault))
    run, root = settings(), tmp_path / "root"
    store, (_, spec) = open_store(str(root)), stage(settings(), str(tmp_path), published=False)
    put_tasks(store)
    store.create(keys.spec(BASE), spec.to_bytes())
    command = Command("worker-0", "rollout_process", ("--root", str(root), "--base", BASE))
    told: list[Event] = []
    ended: list[object] = []

    def supervise() -> None:
        try:
            outcome = keep_running(
                command, told.append, stop=over.is_set, silence=5.0, grace=0.5, restarts=WORKERS,
                progress=lambda: sum(bool(t.deadly) for t in troubles(store, BASE)),
            )  # fmt: skip
            ended.append(outcome.code)
        except Exception as error:
            ended.append(error)

    over, thread = threading.Event(), threading.Thread(target=supervise)
    thread.start()
    try:
        assert protocol.learner(store, run, stop=lambda: ended not in ([], [0])).run() == "finished", ended
    finally:
        thread.join(30)
        over.set()
        thread.join(30)
    assert ended == [0] and read_window(store, BASE) is not None
    rows, deaths = sealed(store), sum(e["event"] == "restart" for e in told)
    assert 3 <= deaths <= 8
    [trouble] = troubles(store, BASE)
    assert trouble.task_id == POISON and "workers in a row ended" in trouble.reason(2)
    assert {r.status for r in rows if r.task_id == POISON} == {Status.QUARANTINED}
    assert {r.status for r in rows if r.task_id != POISON} == {Status.SUCCEEDED}
    assert {r.task_id for r in rows} == {t.id for t in TASKS}
    found = audit.verify(store, "test")
    assert found.ok, found.violations
    ends = Counter(found.to_json()["dispositions"])
    assert ends.total() == len(rows) and ends["trained"] >= 20 - 2 * 3
