"""A store in this process's memory, for tests and simulations."""

import itertools
import threading
import time
from collections.abc import Callable

from storage.objects import GenerationMismatch, ObjectExists, ObjectMissing, Stat, Stored, check_key, check_prefix


class MemoryStore:
    """Objects in a dictionary under one lock; generations rise over the whole store. It can't leave its process."""

    def __init__(self, name: str = "", wall: Callable[[], float] = time.time) -> None:
        self.url = f"memory://{name}"
        self._objects: dict[str, Stored] = {}
        self._times: dict[str, float] = {}
        self._wall = wall
        self._lock = threading.Lock()
        self._generations = itertools.count(1)

    def put(self, key: str, data: bytes) -> int:
        with self._lock:
            return self._write(key, data)

    def create(self, key: str, data: bytes) -> int:
        with self._lock:
            if key in self._objects:
                raise ObjectExists(f"{key} is there already")
            return self._write(key, data)

    def swap(self, key: str, data: bytes, generation: int) -> int:
        with self._lock:
            standing = self._objects.get(check_key(key))
            current = standing.generation if standing else 0
            if current != generation:
                raise GenerationMismatch(f"{key} stands at generation {current}, not {generation}")
            return self._write(key, data)

    def get(self, key: str) -> Stored:
        with self._lock:
            stored = self._objects.get(check_key(key))
        if stored is None:
            raise ObjectMissing(f"there is no object {key} in {self.url}")
        return stored

    def read(self, key: str, start: int, length: int) -> bytes:
        return self.get(key).data[start : start + length]

    def head(self, key: str) -> Stat | None:
        with self._lock:
            stored = self._objects.get(check_key(key))
            return Stat(len(stored.data), stored.generation, self._times[key]) if stored else None

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> list[str]:
        check_prefix(prefix)
        with self._lock:
            found = sorted(k for k in self._objects if k.startswith(prefix) and k > after)
        return found[:limit]

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(check_key(key), None)

    def _write(self, key: str, data: bytes) -> int:
        generation = next(self._generations)
        self._objects[check_key(key)] = Stored(data, generation)
        self._times[key] = self._wall()
        return generation
