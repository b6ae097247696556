"""What a person is asked: an answer is never overwritten, and counts until the gate has made a decision of it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.gated import ended, grade

from flows.cli import main
from schemas import keys
from schemas.manifest import Lease
from schemas.promotion import GateDecision
from storage.memory import MemoryStore
from tasks import questions, registry

BASE = "runs/small/gates/k"
FOUND = GateDecision(
    candidate="small@3", weights_sha256="a", baseline="old@1", baseline_sha256="b", promoted=True, improvement=0.5,
    low=0.4, high=0.6, confidence=0.95, reason="small@3 beats old@1", reports=(), time=0,
)  # fmt: skip


class Meanwhile(MemoryStore):
    """`happens` once, between the next read and whatever follows it."""

    happens: Callable[[], object] | None = None

    def get(self, key: str):
        found, happens, self.happens = super().get(key), self.happens, None
        if happens:
            happens()
        return found


def test_an_answer_that_comes_while_the_same_is_asked_again_counts() -> None:
    store = Meanwhile()
    assert questions.put(store, BASE, FOUND, 100)  # the driver that asked died
    store.happens = lambda: questions.answer(store, BASE, agreed=True, name="Ada")
    assert not questions.put(store, BASE, FOUND, 100)
    found = questions.close(store, BASE)
    assert (found.approved, found.by, found.open) == (True, "Ada", False)


def test_an_answer_that_was_read_but_never_became_a_decision_counts() -> None:
    store = MemoryStore()
    assert questions.put(store, BASE, FOUND, 100)
    questions.answer(store, BASE, agreed=False, name="Ada")
    assert questions.close(store, BASE).by == "Ada"  # here the driver died
    assert not questions.put(store, BASE, FOUND, 100)
    assert questions.close(store, BASE).approved is False


def test_an_answer_to_something_else_does_not_count() -> None:
    store = MemoryStore()
    assert questions.put(store, BASE, FOUND, 100)
    questions.answer(store, BASE, agreed=True, name="Ada")
    other = FOUND.model_copy(update={"reason": "small@3 beats rival@7"})
    assert questions.put(store, BASE, other, 100)
    found = questions.read(store, BASE)
    assert found is not None and found.approved is None and found.reason == other.reason


def test_a_run_whose_driver_died_elsewhere_is_not_told_but_decided(
    project: Path, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case = ended(project, root, "promotion.approval=true")
    grade(case, (1.0, 0.5))
    store = case.session.store
    questions.put(store, case.base, FOUND, 100)
    dead = Lease(owner="them", host="another machine", pid=1, seconds=0.5, beat=3, run="small")
    store.put(keys.run_lease("small"), dead.to_bytes())
    assert main(["promote", "small", "--approve", "Ada", "--root", root]) == 0
    assert "promoted: small@3" in capsys.readouterr().out
    entry = registry.read(store, "small", "production")[0].history[-1]
    assert (entry.ref, entry.approved_by) == ("small@3", "Ada")
