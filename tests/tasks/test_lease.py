"""Who drives: one at a time, a silent or dead driver is replaced, and the replaced one learns of it."""

import socket
import threading

import pytest

from schemas.manifest import Lease
from storage.memory import MemoryStore
from tasks.lease import HeldLease, LeaseTaken, acquire, hold, is_held, visible_processes

KEY = "runs/r/lease.json"


def other(**changes: object) -> Lease:
    fields = {"owner": "other", "host": "elsewhere", "pid": 1, "seconds": 0.5, "beat": 0} | changes
    return Lease.model_validate(fields)


def test_a_released_lease_is_free_at_once() -> None:
    store = MemoryStore("m")
    with hold(store, KEY, "run r"):
        assert is_held(store, KEY)
    assert not is_held(store, KEY)
    with hold(store, KEY, "run r"):
        pass


def test_a_renewed_lease_is_refused() -> None:
    store = MemoryStore("m")
    held = acquire(store, KEY, "run r", seconds=0.3)
    with pytest.raises(LeaseTaken, match="run r is being driven by process"):
        acquire(store, KEY, "run r")
    held.release()


def test_a_silent_holder_is_replaced_after_its_time() -> None:
    store = MemoryStore("m")
    store.put(KEY, other(seconds=0.3).to_bytes())
    acquire(store, KEY, "run r").release()


def test_a_process_of_another_container_with_the_same_host_name_is_not_taken_for_dead() -> None:
    """Containers on the host's network bear its name and see none of each other's processes."""
    store = MemoryStore()
    there = other(host=socket.gethostname(), pid=2**22 - 1, processes="another boot or another namespace")
    store.put(KEY, there.to_bytes())
    assert is_held(store, KEY)


def test_a_dead_process_of_this_host_is_replaced_at_once() -> None:
    store = MemoryStore("m")
    store.put(
        KEY, other(host=socket.gethostname(), pid=2**22 - 1, seconds=1000.0, processes=visible_processes()).to_bytes()
    )
    acquire(store, KEY, "run r").release()


def test_a_lost_lease_is_noticed_and_left_alone() -> None:
    store = MemoryStore("m")
    lost = threading.Event()
    held: HeldLease = acquire(store, KEY, "run r", seconds=0.1, on_lost=lost.set)
    store.put(KEY, other().to_bytes())
    assert lost.wait(5)
    held.release()
    assert Lease.from_bytes(store.get(KEY).data, KEY).owner == "other"


def test_of_many_that_race_one_wins() -> None:
    store = MemoryStore("m")
    store.put(KEY, other(released=True).to_bytes())
    won: list[HeldLease] = []

    def race() -> None:
        try:
            won.append(acquire(store, KEY, "run r", seconds=0.3))
        except LeaseTaken:
            return

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    won[0].release()
