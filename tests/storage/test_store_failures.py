"""Stores that can't be opened and disks that fail: one sentence, the right exit code, nothing stored lost."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import HeadraceError, RequestError, RunStopped
from storage import durable
from storage.folder import FolderStore
from storage.objects import Stored
from storage.open import open_store


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    made = FolderStore(tmp_path / "store")
    made.probe()
    return made


def failing(number: int) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return call


def one_sentence(error: HeadraceError) -> bool:
    return "\n" not in str(error) and len(str(error)) < 400


# -- opening ----------------------------------------------------------------------------------------------------


def test_a_folder_opens_by_path_and_by_file_url(tmp_path: Path) -> None:
    open_store(str(tmp_path / "with space")).put("x", b"1")
    assert open_store(f"file://{tmp_path}/with%20space").get("x").data == b"1"
    assert open_store(f"file://localhost{tmp_path}/with%20space").get("x").data == b"1"
    open_store(f"file://{tmp_path}/a#b?c").put("x", b"2")
    assert (tmp_path / "a#b?c" / "x").read_bytes() == b"2"


def test_a_relative_path_is_taken_from_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("here")
    assert store.url == str(tmp_path / "here")


def test_memory_stores_go_by_name() -> None:
    open_store("memory://contract-one").put("x", b"1")
    assert open_store("memory://contract-one").get("x").data == b"1"
    assert open_store("memory://contract-two").head("x") is None


@pytest.mark.parametrize("url", ["s3://bucket/x", "http://host/x", "://x", "file://host/x", "file://x"])
def test_other_urls_are_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match="file:///path") as refused:
        open_store(url)
    assert one_sentence(refused.value) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "/sub", "/sub/sub"])
def test_a_root_at_or_below_a_file_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RequestError, match="file is a file, not a folder") as refused:
        open_store(f"{tmp_path}/file{below}")
    assert one_sentence(refused.value)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no /proc here")
def test_a_root_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(RequestError, match="/proc/headrace can't be used") as refused:
        open_store("/proc/headrace")
    assert one_sentence(refused.value)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_probe_that_cannot_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(os, "open", failing(number))
    with pytest.raises(RequestError, match=os.strerror(number).lower()) as refused:
        open_store(str(tmp_path / "store"))
    assert one_sentence(refused.value)


def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    with pytest.raises(RequestError, match="hard links"):
        open_store(str(tmp_path))
    assert list((tmp_path / ".tmp").iterdir()) == []


def test_a_file_system_whose_links_replace_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", lambda source, target: Path(target).write_bytes(Path(source).read_bytes()))
    with pytest.raises(RequestError, match="don't exclude each other"):
        open_store(str(tmp_path))
    assert list((tmp_path / ".tmp").iterdir()) == []


# -- working ----------------------------------------------------------------------------------------------------

WRITES: list[Callable[[FolderStore], object]] = [
    lambda store: store.put("a/x", b"new"),
    lambda store: store.create("a/y", b"new"),
    lambda store: store.swap("a/x", b"new", 2),
]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("write", errno.ENOSPC),
        ("fsync", errno.EIO),
        ("open", errno.EROFS),
        ("link", errno.EACCES),
        ("link", errno.EDQUOT),
    ],
)
def test_a_failing_write_is_one_sentence_and_leaves_what_was(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, write: Callable[[FolderStore], object], call: str, number: int
) -> None:
    store.put("a/x", b"1")
    store.put("a/x", b"2")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(number))
        with pytest.raises(RunStopped, match=os.strerror(number).lower()) as stopped:
            write(store)
    assert one_sentence(stopped.value) and "a/" in str(stopped.value) and str(store.root) in str(stopped.value)
    assert store.get("a/x") == Stored(b"2", 2) and store.list("") == ["a/x"]
    assert list((store.root / ".tmp").iterdir()) == []


def test_a_half_written_file_is_never_published(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes a few bytes at a time, then is full."""
    write, room = os.write, [10]

    def filling(descriptor: int, data: memoryview) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(descriptor, data[: min(3, room[0])])
        room[0] -= done
        return done

    monkeypatch.setattr(os, "write", filling)
    store.create("fits", b"0123456")
    with pytest.raises(RunStopped, match="no space left"):
        store.create("too-long", b"0123456")
    assert store.list("") == ["fits"] and store.get("fits").data == b"0123456"


@pytest.mark.parametrize("call", [lambda s: s.get("x"), lambda s: s.read("x", 0, 1), lambda s: s.put("x", b"")])
def test_an_unreadable_object_is_one_sentence(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch, call: Callable[[FolderStore], object]
) -> None:
    store.create("x", b"1")
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", failing(errno.EIO))
        patch.setattr(Path, "open", failing(errno.EIO))
        patch.setattr(os, "listdir", failing(errno.EACCES))
        with pytest.raises(RunStopped) as stopped:
            call(store)
    assert one_sentence(stopped.value)


def test_a_won_swap_stands_though_the_copy_for_people_fails(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("x", b"1")
    monkeypatch.setattr(durable, "show", failing(errno.ENOSPC))
    assert store.swap("x", b"2", 1) == 2
    assert store.get("x") == Stored(b"2", 2)


@pytest.mark.parametrize("key", ["a/x/y", "a/x/y/z"])
def test_an_object_cannot_be_a_folder(store: FolderStore, key: str) -> None:
    store.create("a/x", b"1")
    for write in (store.put, store.create):
        with pytest.raises(RunStopped, match="not a directory"):
            write(key, b"2")
    assert store.list("") == ["a/x"]


def test_a_folder_cannot_be_an_object(store: FolderStore) -> None:
    store.create("a/x", b"1")
    for write in (store.put, store.create, lambda key, data: store.swap(key, data, 0)):
        with pytest.raises(RunStopped, match="there is a folder of that name"):
            write("a", b"2")
    assert store.list("") == ["a/x"]


def test_a_key_too_long_for_the_file_system(store: FolderStore) -> None:
    with pytest.raises(RunStopped, match="too long"):
        store.create("x" * 300, b"")
