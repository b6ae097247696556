"""The registry: one pointer with a whole history, whoever races, whatever answer gets lost, whoever goes back."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import gcs_stores

from schemas.errors import RequestError, RunStopped
from schemas.manifest import WeightsRef
from schemas.promotion import Channel, Promotion
from storage.memory import MemoryStore
from storage.objects import GenerationMismatch, ObjectStore
from storage.open import open_store
from tasks import registry

STORES = {"memory": lambda _: MemoryStore(), "folder": lambda path: open_store(str(path / "root")), **gcs_stores.STORES}


@pytest.fixture(params=["memory", "folder", "gcs", "gcs with faults"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return STORES[request.param](tmp_path)


def entry(ref: str, kind: str = "gate") -> Promotion:
    weights = WeightsRef(prefix=f"weights/{ref}", sha256=f"digest-of-{ref}", origin=ref)
    return Promotion.model_validate(
        {"ref": ref, "kind": kind, "weights": weights, "ledger_head": "", "report": "", "previous": "", "reason": "",
         "time": time.time()}
    )  # fmt: skip


def after(expected: str, ref: str) -> Callable[[Channel], Promotion]:
    """What a gate does that compared `ref` with the champion `expected`."""

    def make(channel: Channel) -> Promotion:
        champion = channel.champion.ref if channel.champion else ""
        if champion != expected:
            raise RunStopped(f"{champion} became champion")
        return entry(ref).model_copy(update={"previous": champion})

    return make


def crowned(store: ObjectStore, *refs: str) -> list[str]:
    before = ""
    for ref in refs:
        store.put(f"weights/{ref}/config.json", b"{}")
        registry.append(store, "m", "production", after(before, ref))
        before = ref
    return refs_of(store)


def refs_of(store: ObjectStore) -> list[str]:
    return [e.ref for e in registry.read(store, "m", "production")[0].history]


def test_promotions_that_race_leave_one_winner_and_a_whole_history(store: ObjectStore) -> None:
    crowned(store, "a@1")
    start, names = threading.Barrier(4), [f"b@{i}" for i in range(4)]

    def promote(ref: str) -> bool:
        start.wait()
        try:
            registry.append(store, "m", "production", after("a@1", ref))
        except RunStopped:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        won = [ref for ref, first in zip(names, pool.map(promote, names), strict=True) if first]
    assert len(won) == 1 and refs_of(store) == ["a@1", *won]


def test_appends_without_a_condition_are_all_kept(store: ObjectStore) -> None:
    names = [f"run-{i}@1" for i in range(12)]

    def note(ref: str) -> None:
        registry.note_candidate(store, "m", ref, entry(ref).weights, "head")
        registry.note_candidate(store, "m", ref, entry(ref).weights, "head")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(note, names))
    history = registry.read(store, "m", "candidate")[0].history
    assert sorted(e.ref for e in history) == sorted(names) and {e.kind for e in history} == {"candidate"}
    assert [e.previous for e in history] == ["", *(e.ref for e in history[:-1])]


class Between(MemoryStore):
    """A store in which `meanwhile` happens once, just before or just after call number `moment`."""

    def __init__(self, moment: int, *, late: bool) -> None:
        super().__init__()
        self.moment, self.late, self.count, self.meanwhile = moment, late, -1, lambda: None

    def around(self, call: Callable[[], object]) -> object:
        self.count += 1
        mine, happens = self.count == self.moment, self.meanwhile
        if mine:
            self.meanwhile = lambda: None
            if not self.late:
                happens()
        answer = call()
        if mine and self.late:
            happens()
        return answer

    def get(self, key: str):
        return self.around(lambda: super(Between, self).get(key))

    def swap(self, key: str, data: bytes, generation: int):
        return self.around(lambda: super(Between, self).swap(key, data, generation))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("moment", range(3))
def test_another_promotion_at_any_moment_leaves_one_winner(moment: int, late: bool) -> None:
    store = Between(moment, late=late)
    crowned(store, "a@1")
    store.count = -1
    outcome: list[str] = []
    store.meanwhile = lambda: promote("other@1")

    def promote(ref: str) -> None:
        try:
            registry.append(store, "m", "production", after("a@1", ref))
            outcome.append(ref)
        except RunStopped as error:
            assert "became champion" in str(error)

    promote("mine@1")
    store.meanwhile()
    assert len(outcome) == 1 and refs_of(store) == ["a@1", *outcome]


class Forgetful(MemoryStore):
    """Swaps win, and say that they lost; `more` happens before anybody looks."""

    more: Callable[[], object] = staticmethod(lambda: None)

    def swap(self, key: str, data: bytes, generation: int) -> int:
        super().swap(key, data, generation)
        more, self.more = self.more, lambda: None
        more()
        raise GenerationMismatch("the answer was lost and the repeated request was refused")


def test_a_write_whose_answer_was_lost_is_recognised_as_won() -> None:
    store = Forgetful()
    assert registry.append(store, "m", "production", after("", "a@1")).ref == "a@1"
    store.more = lambda: registry.append(store, "m", "production", after("b@1", "c@1"))
    assert registry.append(store, "m", "production", after("a@1", "b@1")).ref == "b@1"
    assert refs_of(store) == ["a@1", "b@1", "c@1"]


def test_going_back_appends_and_goes_one_further_each_time(store: ObjectStore) -> None:
    crowned(store, "a@1", "b@1", "c@1")
    back = registry.rollback(store, "m", "production", None, "worse on Fridays")
    assert (back.ref, back.kind, back.previous, back.reason) == ("b@1", "rollback", "c@1", "worse on Fridays")
    assert "@" in back.by and registry.rollback(store, "m", "production", None, "still").ref == "a@1"
    assert refs_of(store) == ["a@1", "b@1", "c@1", "b@1", "a@1"]
    with pytest.raises(RequestError, match="no champion before a@1"):
        registry.rollback(store, "m", "production", None, "more")
    assert registry.rollback(store, "m", "production", "c@1", "back to the newest").ref == "c@1"


def test_going_back_is_refused_with_what_there_is(store: ObjectStore) -> None:
    with pytest.raises(RequestError, match="it has no champion at all"):
        registry.rollback(store, "m", "production", None, "why")
    crowned(store, "a@1", "b@1")
    with pytest.raises(RequestError, match="its channels are m/production"):
        registry.rollback(store, "m", "staging", None, "why")
    with pytest.raises(RequestError, match="can't go back to `x@9`: its earlier champions are a@1"):
        registry.rollback(store, "m", "production", "x@9", "why")
    store.delete("weights/a@1/config.json")
    with pytest.raises(RequestError, match="the weights of a@1 are no longer in"):
        registry.rollback(store, "m", "production", None, "why")
    assert refs_of(store) == ["a@1", "b@1"]


def test_going_back_from_a_champion_that_is_none_any_more_is_refused() -> None:
    store = Between(1, late=False)
    crowned(store, "a@1", "b@1")
    store.count = -1
    store.meanwhile = lambda: registry.append(store, "m", "production", after("b@1", "c@1"))
    with pytest.raises(RunStopped, match="c@1 became champion of m/production meanwhile"):
        registry.rollback(store, "m", "production", None, "why")
    assert refs_of(store) == ["a@1", "b@1", "c@1"]
