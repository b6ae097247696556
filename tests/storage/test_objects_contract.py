"""What every object store promises, checked on each of them.

Another backend joins by one more entry in STORES: a function from an empty folder to an empty store.
"""

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import pytest
from support import gcs_stores
from support.store_processes import creates, increment

from schemas.errors import RequestError
from storage.objects import (
    GenerationMismatch,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    create_json,
    find,
    get_json,
    put_json,
    swap_json,
)
from storage.open import open_store

STORES: dict[str, Callable[[Path], ObjectStore]] = {
    "memory": lambda _: open_store(f"memory://{uuid.uuid4().hex}"),
    "folder": lambda folder: open_store(str(folder / "store")),
    **gcs_stores.STORES,
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return STORES[request.param](tmp_path)


def test_put_is_read_back_and_changes_the_generation(store: ObjectStore) -> None:
    first = store.put("a/b.json", b"one")
    assert (store.get("a/b.json").data, store.get("a/b.json").generation) == (b"one", first)
    second = store.put("a/b.json", b"other")
    assert second > first > 0
    assert (store.get("a/b.json").data, store.get("a/b.json").generation) == (b"other", second)
    stat = store.head("a/b.json")
    assert stat is not None and (stat.size, stat.generation) == (5, second)
    assert abs(stat.modified - time.time()) < 3600


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    generation = store.create("empty", b"")
    assert store.get("empty").data == b""
    assert store.swap("empty", b"", generation) != generation
    stat = store.head("empty")
    assert stat is not None and stat.size == 0
    assert store.list("") == ["empty"]


def test_create_refuses_what_is_there(store: ObjectStore) -> None:
    store.create("x", b"first")
    with pytest.raises(ObjectExists, match="x"):
        store.create("x", b"second")
    assert store.get("x").data == b"first"


def test_swap_wants_the_generation_that_stands(store: ObjectStore) -> None:
    first = store.swap("x", b"1", 0)
    second = store.swap("x", b"2", first)
    for stale in (0, first, second + 1000):
        with pytest.raises(GenerationMismatch, match="x"):
            store.swap("x", b"no", stale)
    assert (store.get("x").data, store.get("x").generation) == (b"2", second)
    with pytest.raises(GenerationMismatch):
        store.swap("absent", b"no", first)
    assert find(store, "absent") is None


def test_a_put_moves_a_swap_out_of_the_way(store: ObjectStore) -> None:
    generation = store.create("x", b"1")
    store.put("x", b"2")
    with pytest.raises(GenerationMismatch):
        store.swap("x", b"3", generation)
    assert store.get("x").data == b"2"


def test_absent_objects(store: ObjectStore) -> None:
    store.put("folder/x", b"1")
    for key in ("y", "folder", "folder/y", "folder/x/z", "none/such"):
        assert store.head(key) is None and find(store, key) is None
        with pytest.raises(ObjectMissing, match=key):
            store.get(key)
        with pytest.raises(ObjectMissing, match=key):
            store.read(key, 0, 1)
        store.delete(key)
    assert store.list("") == ["folder/x"]


def test_read_takes_a_range(store: ObjectStore) -> None:
    store.put("x", b"0123456789")
    assert store.read("x", 0, 4) == b"0123"
    assert store.read("x", 8, 100) == b"89"
    assert store.read("x", 10, 5) == b"" == store.read("x", 3, 0)
    store.put("x", b"abc")
    assert store.read("x", 1, 2) == b"bc"


def test_a_deleted_object_is_gone_and_can_come_again(store: ObjectStore) -> None:
    for number in range(3):
        store.put("a/x", b"%d" % number)
    store.delete("a/x")
    assert store.head("a/x") is None and store.list("a/") == []
    store.create("a/x", b"new")
    assert store.get("a/x").data == b"new" and store.list("a/") == ["a/x"]


def test_list_sorts_whole_keys(store: ObjectStore) -> None:
    """`a.b` < `a/b` < `a0` as text, though a folder walk meets them otherwise."""
    keys = ["a-b/z", "a.b", "a/b", "a/b.c", "a/b=/d", "a/c/d", "a0", "aa/b", "b"]
    for key in reversed(keys):
        store.create(key, b"")
    assert store.list("") == keys
    assert store.list("a/") == ["a/b", "a/b.c", "a/b=/d", "a/c/d"]
    assert store.list("a") == keys[:-1]
    assert store.list("a/b") == ["a/b", "a/b.c", "a/b=/d"]
    assert store.list("a/c/") == ["a/c/d"] and store.list("c/") == []


def test_list_goes_on_after_a_key(store: ObjectStore) -> None:
    keys = [f"w/{worker}/{n:03d}" for worker in "abc" for n in range(4)]
    for key in keys:
        store.create(key, b"")
    assert store.list("w/", after="w/b/001") == keys[6:]
    assert store.list("w/", after="w/b0") == keys[8:], "the text after `after` need not be a key"
    assert store.list("w/b/", after="w/a/000") == keys[4:8]
    assert store.list("w/", after="w/b/001", limit=3) == keys[6:9]
    assert store.list("w/", after=keys[-1]) == store.list("w/", limit=0) == []


def test_an_overwritten_object_is_listed_once(store: ObjectStore) -> None:
    for number in range(20):
        store.put("a/x", b"%d" % number)
    assert store.list("") == store.list("a/x") == ["a/x"]


BAD_KEYS = (
    "",
    "/",
    "/x",
    "x/",
    "a//b",
    ".",
    "..",
    "a/../b",
    ".tmp/x",
    "a/.gen",
    "a b",
    "a\\b",
    "ä",
    "a\n",
    "a\0",
    "~x",
    "a:b",
)


@pytest.mark.parametrize("key", BAD_KEYS)
def test_keys_are_plain(store: ObjectStore, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put(key, b""),
        lambda: store.create(key, b""),
        lambda: store.swap(key, b"", 0),
        lambda: store.get(key),
        lambda: store.read(key, 0, 1),
        lambda: store.head(key),
        lambda: store.delete(key),
    ]
    for call in calls:
        with pytest.raises(RequestError, match="is no store key"):
            call()
    assert store.list("") == []


def test_every_allowed_character_is_taken(store: ObjectStore) -> None:
    key = "AZaz09._=@+-/_/=/@/+/-/x..y"
    store.create(key, b"1")
    assert store.list("") == [key] and store.get(key).data == b"1"


@pytest.mark.parametrize("prefix", ["../", "/etc/", "a/../../", ".tmp/", "a//"])
def test_a_prefix_stays_in_the_store(store: ObjectStore, prefix: str) -> None:
    with pytest.raises(RequestError, match="is no store key"):
        store.list(prefix)


def test_json_objects(store: ObjectStore) -> None:
    generation = create_json(store, "x.json", {"b": 1, "a": "ü"})
    assert store.get("x.json").data == '{"a":"ü","b":1}'.encode()
    generation = swap_json(store, "x.json", [1], generation)
    assert get_json(store, "x.json") == [1]
    assert put_json(store, "x.json", None) != generation
    assert get_json(store, "x.json") is None


def test_of_sixteen_that_create_one_wins(store: ObjectStore) -> None:
    keys, start = [f"race/{n}" for n in range(10)], Barrier(16)

    def racer(name: int) -> list[str]:
        start.wait()
        return [key for key in keys if creates(store, key, b"%d" % name)]

    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(racer, range(16)))
    assert sorted(key for each in won for key in each) == keys
    assert all(store.get(key).data == b"%d" % name for name, each in enumerate(won) for key in each)


def test_no_increment_is_lost(store: ObjectStore, request: pytest.FixtureRequest) -> None:
    """One may be made twice where its answer got lost and others wrote before it could be read back."""
    store.create("counter", b"0")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: increment(store, "counter", 15), range(8)))
    counted = int(store.get("counter").data)
    assert counted == 120 or (counted > 120 and "faults" in request.node.callspec.id)


def test_of_swaps_from_one_generation_one_wins(store: ObjectStore) -> None:
    generation, start = store.create("x", b""), Barrier(8)

    def swapper(name: int) -> bool:
        start.wait()
        try:
            store.swap("x", b"%d" % name, generation)
        except GenerationMismatch:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(swapper, range(8)))
    assert won.count(True) == 1 and store.get("x").data == b"%d" % won.index(True)


def test_readers_beside_writers_see_whole_objects_in_order(store: ObjectStore) -> None:
    """One generation has one content, and neither runs backwards, however often old ones are removed meanwhile."""
    store.create("x", b"0")
    done = Event()

    def reader(_: int) -> list[tuple[int, int]]:
        seen = []
        while not done.is_set():
            found = store.get("x")
            seen.append((found.generation, int(found.data)))
            assert store.head("x") is not None and store.read("x", 0, 9) and store.list("") == ["x"]
        return seen

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(reader, n) for n in range(3)]
        try:
            for number in range(1, 100):
                store.put("x", b"%d" % number)
        finally:
            done.set()
        seen = [r.result() for r in readers]
    assert all(each == sorted(each) for each in seen)
    pairs = {pair for each in seen for pair in each}
    assert len(pairs) == len({generation for generation, _ in pairs})
