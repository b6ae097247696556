"""What tests run in spawned processes against a store that they open by its URL."""

import hashlib
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

from storage.objects import GenerationMismatch, ObjectExists, ObjectStore
from storage.open import open_store


def sealed(body: bytes) -> bytes:
    """Bytes that tell whether they are whole."""
    return hashlib.sha256(body).digest() + body


def is_whole(data: bytes) -> bool:
    return hashlib.sha256(data[32:]).digest() == data[:32]


def increment(store: ObjectStore, key: str, times: int) -> None:
    """Count up by compare-and-swap, each time until it wins."""
    for _ in range(times):
        while True:
            found = store.get(key)
            try:
                store.swap(key, b"%d" % (int(found.data) + 1), found.generation)
                break
            except GenerationMismatch:
                continue


def creates(store: ObjectStore, key: str, data: bytes) -> bool:
    """Whether this caller created the object."""
    try:
        store.create(key, data)
    except ObjectExists:
        return False
    return True


def race(url: str, name: int, keys: list[str], times: int, start: Barrier, answer: Connection) -> None:
    """Race others for the keys and count up with them; answers with the keys that were won."""
    store = open_store(url)
    start.wait()
    won = [key for key in keys if creates(store, key, b"%d" % name)]
    increment(store, "counter", times)
    answer.send(won)


def write_for_ever(url: str, answer: Connection) -> None:
    """Create and overwrite large objects until killed."""
    store, number = open_store(url), 0
    while True:
        body = os.urandom(8) * 40_000
        store.put("overwritten", sealed(body))
        store.create(f"created/{os.getpid()}-{number:06d}", sealed(body))
        number += 1
        answer.send(number)


def swap_stopped(url: str, key: str, generation: int, moment: str, answer: Connection) -> None:
    """Swap, but SIGSTOP oneself just before or just after the link that decides."""
    store, link = open_store(url), os.link
    moments: dict[str, Callable[[Callable[[], None]], Any]] = {
        "before": lambda publish: (os.kill(os.getpid(), signal.SIGSTOP), publish()),
        "after": lambda publish: (publish(), os.kill(os.getpid(), signal.SIGSTOP)),
    }

    def stopping(source: Any, target: Any) -> None:
        os.link = link
        moments[moment](lambda: link(source, target))

    os.link = stopping
    try:
        answer.send(store.swap(key, b"stopped", generation))
    except GenerationMismatch:
        answer.send("mismatch")
