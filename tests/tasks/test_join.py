"""Workers that join a run from elsewhere: when they start, when they leave, when they refuse. Stand-ins play."""

import contextvars
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas import keys
from schemas.errors import RequestError, RunStopped
from schemas.manifest import Window, WorkerState
from storage.control import read_worker
from storage.memory import MemoryStore
from storage.objects import ObjectStore
from storage.open import open_store
from tasks import record, reinforce, warm_up
from tasks.join import check_joinable, join
from tasks.request import load
from tasks.session import Session, opened

OWN = "environment.reward=mine:score"


@contextmanager
def driven(project: Path, root: str, *overrides: str) -> Iterator[Session]:
    """A run that is driven by this process while the block lasts; its warm-up is done."""
    request = load(str(project / "small.toml"), overrides, root=root)
    with opened(request, record.prepare(request), lambda source, event: None) as session:
        warm_up.warm_up(session, "habit")
        yield session


def put_window(store: ObjectStore, base: str, *, step: int = 0, closed: bool = False) -> None:
    window = Window(version=step, step=step, limit=9, low=0, ended=(), closed=closed, learner="x")
    store.put(keys.window(base), window.to_bytes())


def workers(store: ObjectStore, base: str) -> list[WorkerState]:
    found, number = [], 0
    while (state := read_worker(store, base, number)) is not None:
        found.append(state[0])
        number += 1
    return found


def until(done: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.02)


HERE = contextvars.ContextVar("here", default="")
"""As the settings of Prefect are, to which a sink may speak."""


class Joined:
    """A call of `join` in a thread of its own."""

    def __init__(self, root: str, **options: Any) -> None:
        self.stop, self.said, self.contexts = threading.Event(), list[tuple[str, dict[str, Any]]](), set[str]()
        self._pool = ThreadPoolExecutor(1, initializer=lambda: HERE.set("the caller's"))
        self.future: Future[str] = self._pool.submit(
            join, open_store(root), "small", sink=self._hear, stop=self.stop, **options
        )

    def _hear(self, source: str, event: dict[str, Any]) -> None:
        self.said.append((source, event))
        self.contexts.add(HERE.get())

    def messages(self) -> str:
        return " ".join(str(e.get("message", "")) for _, e in self.said)


def test_workers_wait_for_the_window_and_leave_when_rl_has_ended(project: Path, root: str, fakes: None) -> None:
    with driven(project, root) as session:
        joined = Joined(root, workers=2)
        until(lambda: "no open RL window yet" in joined.messages(), "it waits")
        base = reinforce.open_stage(session)
        put_window(session.store, base)
        until(lambda: len(workers(session.store, base)) == 2, "two workers register")
        put_window(session.store, base, step=1, closed=True)
        until(lambda: all(w.state == "left" for w in workers(session.store, base)), "they leave a closed window")
        assert not joined.future.done(), "one step of three is not the end"
        put_window(session.store, base, step=1)
        until(lambda: len(workers(session.store, base)) == 4, "the stage is continued")
        put_window(session.store, base, step=3, closed=True)
        assert joined.future.result(60) == "the RL of run small has ended"
        assert all(w.state == "left" for w in workers(session.store, base))
        with pytest.raises(RequestError, match="has ended"):
            check_joinable(session.store, "small")


def test_a_stop_is_a_return_and_later_joiners_have_later_numbers(project: Path, root: str, fakes: None) -> None:
    with driven(project, root) as session:
        base = reinforce.open_stage(session)
        put_window(session.store, base)
        first = Joined(root, workers=2)
        until(lambda: len(workers(session.store, base)) == 2, "two workers register")
        second = Joined(root)
        until(lambda: len(workers(session.store, base)) == 3, "a third registers")
        until(lambda: second.said, "it says so")
        first.stop.set()
        assert first.future.result(60) == "stopped"
        assert [w.state for w in workers(session.store, base)] == ["left", "left", "running"]
        second.stop.set()
        assert second.future.result(60) == "stopped"
        assert {s for s, _ in first.said} == {"worker-0", "worker-1"} and {s for s, _ in second.said} == {"worker-2"}
        assert first.contexts == second.contexts == {"the caller's"}


def test_workers_follow_the_run_to_another_stage_unless_they_are_bound(project: Path, root: str, fakes: None) -> None:
    with driven(project, root) as session:
        old = reinforce.open_stage(session)
        put_window(session.store, old)
        bound, free = Joined(root, base=old), Joined(root)
        until(lambda: len(workers(session.store, old)) == 2, "both register")
    with driven(project, root, "rl.group_size=4") as session:
        new = reinforce.open_stage(session)
        put_window(session.store, new)
        assert bound.future.result(60) == "run small left this RL stage"
        until(lambda: len(workers(session.store, new)) == 1, "the other one moves")
        assert all(w.state == "left" for w in workers(session.store, old))
        free.stop.set()
        assert free.future.result(60) == "stopped"


def test_workers_leave_a_run_that_nobody_drives(project: Path, root: str, fakes: None) -> None:
    with driven(project, root, "rollout.driver_seconds=2") as session:
        base = reinforce.open_stage(session)
        put_window(session.store, base)
        joined = Joined(root)
        until(lambda: workers(session.store, base), "it registers")
    with pytest.raises(RunStopped, match=r"nobody has driven run small for \d s"):
        joined.future.result(60)
    assert [w.state for w in workers(session.store, base)] == ["left"]


def test_a_worker_that_cannot_go_on_ends_the_call_with_its_cause(
    project: Path, root: str, fakes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks import processes
    from tasks.children import Command

    def refuses(root: str, base: str, index: int, folder: str = "") -> Command:
        return Command("worker-0", "rollout.worker", ("--root", root, "--base", "runs/none/rl-0"))

    monkeypatch.setattr(processes, "worker", refuses)
    with driven(project, root) as session:
        put_window(session.store, reinforce.open_stage(session))
        with pytest.raises((RequestError, RunStopped), match="runs/none/rl-0"):
            Joined(root).future.result(60)


def test_other_modules_of_the_user_are_refused(
    project: Path, root: str, fakes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = project / "mine.py"
    module.write_text("def score(task, messages):\n    return 1.0\n")
    with driven(project, root, OWN) as session:
        put_window(session.store, reinforce.open_stage(session))
        copy = Path(shutil.copytree(project, tmp_path / "copy"))
        assert check_joinable(session.store, "small", str(copy)).phase == "open"
        module.write_text("def score(task, messages):\n    return 0.0\n")
        with pytest.raises(RequestError, match=r"are not those of run small .* --folder"):
            check_joinable(session.store, "small")
        module.unlink()
        with pytest.raises(RequestError, match=r"environment.reward = `mine:score`: there is no file .* --folder"):
            Joined(root).future.result(60)
        monkeypatch.setenv("HEADRACE_FOLDER", str(copy))
        assert check_joinable(session.store, "small").phase == "open"
        assert not workers(session.store, keys.rl("small", session.survey().rl.key))


def test_what_cannot_be_joined_is_one_sentence(root: str) -> None:
    with pytest.raises(RequestError, match="there is no run `small`"):
        check_joinable(open_store(root), "small")
    with pytest.raises(RequestError, match="lives in one process"):
        check_joinable(MemoryStore("x"), "small")
