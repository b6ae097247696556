"""The folder store where it is more than the contract: no locks, kills, stopped and stale writers, what people see."""

import os
import pickle
import signal
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from support import store_processes as processes

from storage import durable, folder
from storage.folder import KEPT, FolderStore
from storage.objects import GenerationMismatch, Stored
from storage.open import open_store

spawn = get_context("spawn")
FEW = 5
"""Generations that are kept where a test overwrites often."""


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    made = FolderStore(tmp_path / "store")
    made.probe()
    return made


@contextmanager
def running(target: Callable[..., None], *args: object) -> Generator[tuple[Any, Connection]]:
    """A spawned process and what it answers; killed at the end, stopped or not."""
    receive, send = spawn.Pipe(duplex=False)
    child = spawn.Process(target=target, args=(*args, send))
    child.start()
    try:
        yield child, receive
    finally:
        child.kill()
        child.join()


def once_at_link(monkeypatch: pytest.MonkeyPatch, before: Callable[[], Any], after: Callable[[], Any]) -> None:
    """Run something just before and just after the next link that is made."""
    link = os.link

    def interrupted(source: Any, target: Any) -> None:
        monkeypatch.setattr(os, "link", link)
        before()
        link(source, target)
        after()

    monkeypatch.setattr(os, "link", interrupted)


def nothing() -> None:
    pass


@pytest.fixture
def few_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "KEPT", FEW)


def puts(store: FolderStore, times: int) -> Callable[[], object]:
    """A call that overwrites `x` so often."""
    return lambda: [store.put("x", b"other %d" % n) for n in range(times)]


# -- between processes ------------------------------------------------------------------------------------------


def test_processes_lose_no_increment_and_share_no_created_key(store: FolderStore) -> None:
    count, keys = 8, [f"race/{n}" for n in range(20)]
    store.create("counter", b"0")
    start = spawn.Barrier(count)
    with ExitStack() as stack:
        racers = [stack.enter_context(running(processes.race, store.url, n, keys, 15, start)) for n in range(count)]
        won = [answers.recv() for _, answers in racers]
    assert store.get("counter") == Stored(b"120", 121)
    assert sorted(key for each in won for key in each) == sorted(keys)
    assert all(store.get(key).data == b"%d" % name for name, each in enumerate(won) for key in each)


def test_a_killed_writer_leaves_no_torn_object(store: FolderStore) -> None:
    generation = 0
    for round_ in range(6):
        with running(processes.write_for_ever, store.url) as (_, answers):
            for _ in range(round_ + 1):
                answers.recv()
            time.sleep(0.003 * round_)  # to fall at various points of a write
        found = {key: store.get(key) for key in store.list("")}
        assert all(processes.is_whole(stored.data) for stored in found.values())
        assert found["overwritten"].generation >= generation
        assert store.put("overwritten", processes.sealed(b"mine")) == found["overwritten"].generation + 1
        generation = store.get("overwritten").generation


@pytest.mark.parametrize(
    ("moment", "overwrites", "result"),
    [("before", 1, "mismatch"), ("before", 2 * KEPT, "mismatch"), ("after", 1, 2), ("after", 2 * KEPT, "mismatch")],
)
def test_a_stopped_swapper_blocks_nobody(store: FolderStore, moment: str, overwrites: int, result: object) -> None:
    store.create("x", b"first")
    with running(processes.swap_stopped, store.url, "x", 1, moment) as (child, answers):
        assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
        base = 1 if moment == "before" else 2
        assert store.get("x") == Stored(b"first" if moment == "before" else b"stopped", base)
        for number in range(overwrites):
            assert store.put("x", b"%d" % number) == base + number + 1
        os.kill(child.pid, signal.SIGCONT)
        assert answers.recv() == result
        child.join()
    assert store.get("x") == Stored(b"%d" % (overwrites - 1), base + overwrites)
    assert (store.root / "x").read_bytes() == b"%d" % (overwrites - 1)


def test_a_store_travels_by_url_and_by_pickle(store: FolderStore) -> None:
    store.put("a/x", b"1")
    for again in (open_store(store.url), pickle.loads(pickle.dumps(store))):
        assert again.url == store.url and again.get("a/x").data == b"1"


# -- stale callers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expected", [1, 2, 5])
@pytest.mark.parametrize("between", [1, 2, FEW - 2, FEW - 1, FEW, FEW + 1, 3 * FEW])
@pytest.mark.usefixtures("few_kept")
def test_a_swap_that_others_overtook_loses(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, expected: int, between: int
) -> None:
    puts(store, expected)()
    once_at_link(monkeypatch, before=puts(store, between), after=nothing)
    with pytest.raises(GenerationMismatch):
        store.swap("x", b"stale", expected)
    assert store.get("x") == Stored(b"other %d" % (between - 1), expected + between)
    assert b"stale" not in [path.read_bytes() for path in (store.root / ".gen" / "x").iterdir()]


@pytest.mark.parametrize("since", [1, FEW - 2, FEW - 1, FEW, 3 * FEW])
@pytest.mark.usefixtures("few_kept")
def test_a_swap_that_won_and_was_overwritten(store: FolderStore, monkeypatch: pytest.MonkeyPatch, since: int) -> None:
    """It is reported as won, or after very many overwrites as lost; the newest object stands in any case."""
    store.create("x", b"first")
    once_at_link(monkeypatch, before=nothing, after=puts(store, since))
    try:
        assert store.swap("x", b"mine", 1) == 2 and since < FEW - 1
    except GenerationMismatch:
        assert since >= FEW - 1
    assert store.get("x") == Stored(b"other %d" % (since - 1), 2 + since)


def once_at_read(monkeypatch: pytest.MonkeyPatch, before: Callable[[], Any]) -> None:
    """Run something just before the next file is read."""
    read_bytes, todo = Path.read_bytes, [before]

    def overtaken(path: Path) -> bytes:
        while todo:
            todo.pop()()
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", overtaken)


def test_a_plain_file_overwritten_under_a_reader_is_read_again(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("x", b"first")
    once_at_read(monkeypatch, puts(store, 1))
    assert store.get("x") == Stored(b"other 0", 2)


@pytest.mark.usefixtures("few_kept")
def test_a_generation_removed_under_a_reader_is_looked_up_again(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts(store, 3)()
    once_at_read(monkeypatch, puts(store, FEW + 2))
    assert store.get("x") == Stored(b"other %d" % (FEW + 1), FEW + 5)


# -- what lies on the disk --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few_kept")
def test_the_plain_file_shows_the_newest_and_old_generations_go(store: FolderStore) -> None:
    for number in range(1, 3 * FEW):
        assert store.put("a/x", b"%d" % number) == number
    assert (store.root / "a/x").read_bytes() == b"%d" % (3 * FEW - 1)
    assert len(list((store.root / "a/.gen/x").iterdir())) == FEW
    assert list((store.root / ".tmp").iterdir()) == []


def test_an_object_never_overwritten_is_one_plain_file(store: FolderStore) -> None:
    store.create("a/x", b"1")
    assert [p.name for p in (store.root / "a").iterdir()] == ["x"]


def test_a_writer_that_died_before_showing_its_generation_has_written(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("x", b"first")
    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "_tidy", lambda *_: None)
        store.put("x", b"second")
    assert (store.root / "x").read_bytes() == b"first"
    assert store.get("x") == Stored(b"second", 2) and store.list("") == ["x"]
    store.put("x", b"third")
    assert (store.root / "x").read_bytes() == b"third"


def test_a_delete_cut_short_never_brings_back_older_bytes(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink, allowed = Path.unlink, [0]

    def dying(path: Path, missing_ok: bool = False) -> None:
        if not allowed[0]:
            raise KeyboardInterrupt
        allowed[0] -= 1
        unlink(path, missing_ok=missing_ok)

    puts(store, 5)()
    for steps in range(4):
        with monkeypatch.context() as patch:
            allowed[0] = 1
            patch.setattr(Path, "unlink", dying)
            with pytest.raises(KeyboardInterrupt):
                store.delete("x")
        assert store.get("x").data == b"other 4", f"after {steps + 1} steps"
    store.delete("x")
    assert store.list("") == [] and not (store.root / "x").exists()


def test_foreign_files_are_no_objects(store: FolderStore) -> None:
    store.create("a/x", b"1")
    store.put("a/x", b"2")
    for name in ("notes of mine.txt", ".hidden", "x~", "a/.DS_Store", "a/.gen/x/.nfs0001"):
        (store.root / name).write_bytes(b"?")
    assert store.list("") == ["a/x"] and store.get("a/x") == Stored(b"2", 2)


def test_opening_removes_what_killed_writers_left(store: FolderStore) -> None:
    old, young = store.root / ".tmp/old", store.root / ".tmp/young"
    for path in (old, young):
        path.write_bytes(b"")
    past = time.time() - durable.ABANDONED_SECONDS - 60
    os.utime(old, (past, past))
    open_store(store.url)
    assert list((store.root / ".tmp").iterdir()) == [young]
