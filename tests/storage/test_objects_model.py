"""Any order of operations on a store gives what the same order gives on a dictionary."""

import tempfile
import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from support import gcs_stores

from storage import folder
from storage.objects import GenerationMismatch, ObjectExists, ObjectStore, find
from storage.open import open_store

KEYS = ("a", "a.b", "a-/x", "d/e", "d/e.f", "d/g/h", "d/g/i", "d0/e")
keys, data = st.sampled_from(KEYS), st.binary(max_size=6)
prefixes = st.sampled_from(sorted({key[:n] for key in KEYS for n in range(len(key) + 1)} - {"d//"}))


class Model(RuleBasedStateMachine):
    """The store beside the dictionary; `seen` are the generations of each key since it was last absent."""

    store: ObjectStore

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, bytes] = {}
        self.seen: dict[str, list[int]] = {key: [] for key in KEYS}

    def _wrote(self, key: str, value: bytes, generation: int) -> None:
        assert generation > max(self.seen[key], default=0)
        self.objects[key] = value
        self.seen[key].append(generation)

    @rule(key=keys, value=data)
    def put(self, key: str, value: bytes) -> None:
        self._wrote(key, value, self.store.put(key, value))

    @rule(key=keys, value=data, times=st.integers(3, 6))
    def put_often(self, key: str, value: bytes, times: int) -> None:
        for _ in range(times):
            self.put(key, value)

    @rule(key=keys, value=data)
    def create(self, key: str, value: bytes) -> None:
        if key in self.objects:
            with pytest.raises(ObjectExists):
                self.store.create(key, value)
        else:
            self._wrote(key, value, self.store.create(key, value))

    @rule(key=keys, value=data, pick=st.data())
    def swap(self, key: str, value: bytes, pick: st.DataObject) -> None:
        current = self.seen[key][-1] if self.seen[key] else 0
        generation = pick.draw(st.sampled_from([current, current, 0, 10**6, *self.seen[key][-8:]]))
        if generation == current:
            self._wrote(key, value, self.store.swap(key, value, generation))
        else:
            with pytest.raises(GenerationMismatch):
                self.store.swap(key, value, generation)

    @rule(key=keys)
    def delete(self, key: str) -> None:
        self.store.delete(key)
        self.objects.pop(key, None)
        self.seen[key] = []

    @rule(key=keys, start=st.integers(0, 8), length=st.integers(0, 8))
    def read(self, key: str, start: int, length: int) -> None:
        if key in self.objects:
            assert self.store.read(key, start, length) == self.objects[key][start : start + length]

    @rule(prefix=prefixes, after=prefixes, limit=st.none() | st.integers(0, 4))
    def list_some(self, prefix: str, after: str, limit: int | None) -> None:
        wanted = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        assert self.store.list(prefix, after, limit) == wanted[:limit]

    @invariant()
    def same(self) -> None:
        assert self.store.list("") == sorted(self.objects)
        for key in KEYS:
            found, stat = find(self.store, key), self.store.head(key)
            if key not in self.objects:
                assert found is None and stat is None
                continue
            assert found is not None and (found.data, found.generation) == (self.objects[key], self.seen[key][-1])
            assert stat is not None and (stat.size, stat.generation) == (len(found.data), found.generation)


class MemoryModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self.store = open_store(f"memory://{uuid.uuid4().hex}")


class FolderModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self.store = open_store(str(Path(self._folder.name)))

    def teardown(self) -> None:
        self._folder.cleanup()


class GcsModel(Model):
    """With faults: this client is alone, so that no lost answer may show."""

    def __init__(self) -> None:
        super().__init__()
        self.store = gcs_stores.STORES["gcs with faults"](Path())


@pytest.mark.parametrize(("machine", "examples"), [(MemoryModel, 60), (FolderModel, 15), (GcsModel, 4)])
def test_a_store_behaves_like_a_dictionary(
    monkeypatch: pytest.MonkeyPatch, machine: type[Model], examples: int
) -> None:
    monkeypatch.setattr(folder, "KEPT", 4)
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=20, deadline=None, database=None, suppress_health_check=checks
        ),
    )
