"""Two runs promote at once, interleaved at every store call; one driver dies at every store call and is run again."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.gated import ended, report

from schemas import keys
from schemas.errors import RunStopped
from schemas.promotion import GateDecision
from storage import audit
from storage.memory import MemoryStore
from storage.objects import ObjectStore
from tasks import decisions, promote, registry
from tasks.figures import evaluation
from tasks.gate import Case
from tasks.promote import Answer
from tasks.session import Session

Loader = Callable[[], tuple[MemoryStore, dict[str, Case]]]


class Interrupted(MemoryStore):
    """A copy of a store in which `event` happens before call number `moment`, or after it where it is `late`."""

    def __init__(self, objects: dict[str, Any], moment: int, event: Callable[[], object], *, late: bool) -> None:
        super().__init__("interrupted")
        for key, stored in objects.items():
            MemoryStore.put(self, key, stored.data)
        self.moment, self.event, self.late, self.calls = moment, event, late, 0

    def around(self, call: Callable[[], Any]) -> Any:
        now, self.calls = self.calls == self.moment, self.calls + 1
        if now and not self.late:
            self.event()
        try:
            return call()
        finally:
            if now and self.late:
                self.event()

    def create(self, key: str, data: bytes) -> int:
        return self.around(lambda: super(Interrupted, self).create(key, data))

    def swap(self, key: str, data: bytes, generation: int) -> int:
        return self.around(lambda: super(Interrupted, self).swap(key, data, generation))

    def get(self, key: str) -> Any:
        return self.around(lambda: super(Interrupted, self).get(key))

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> list[str]:
        return self.around(lambda: super(Interrupted, self).list(prefix, after, limit))


@pytest.fixture
def world(project: Path, root: str) -> tuple[dict[str, Any], dict[str, Case]]:
    """Two ended runs, each with reports on its own weights, the other's, and those it started from."""
    settings = ("promotion.resamples=50", "promotion.approval=true")
    cases = {run: ended(project, root, *settings, run=run) for run in ("small", "other")}
    store = cases["small"].session.store
    for case in cases.values():
        sides = [(c.ref, c.weights, 1.0) for c in cases.values()] + [("start", case.start, 0.5)]
        for ref, weights, success in sides:
            played = evaluation(case.session.request, "x", "promotion.tasks", ref, weights, 1.0, 1)
            key = keys.evaluation_report(keys.evaluation(case.session.request.run, played.key))
            store.put(key, report(case.session, played, success).to_bytes())
    return {key: store.get(key) for key in store.list("")}, cases


def moved(case: Case, store: ObjectStore) -> Case:
    """The same case in another store."""
    request = dataclasses.replace(case.session.request, store=store)
    return dataclasses.replace(case, session=Session(request, case.session.record, lambda *_: None))


def yes(case: Case, found: GateDecision) -> Answer:
    return Answer(True, "Ada")


def attempt(case: Case) -> GateDecision | None:
    try:
        return promote.promote(case, yes)
    except RunStopped as error:
        assert "became champion while the gate decided" in str(error)
        return None


@pytest.mark.parametrize("late", [False, True])
def test_two_promotions_interleaved_at_every_call_leave_one_winner(
    world: tuple[dict[str, Any], dict[str, Case]], late: bool
) -> None:
    objects, cases = world
    winners, moment = set(), 0
    while True:
        outcomes: dict[str, GateDecision | None] = {}
        store = Interrupted(objects, moment, lambda: None, late=late)

        def rival(store: Interrupted = store, outcomes: dict[str, Any] = outcomes) -> None:
            outcomes["other"] = attempt(moved(cases["other"], store))

        store.event = rival
        outcomes["small"] = attempt(moved(cases["small"], store))
        if "other" not in outcomes:
            break  # the first was done before this moment
        history = registry.read(store, "small", "production")[0].history
        assert len(history) == 1, (moment, [e.ref for e in history])
        winner = history[0].ref.partition("@")[0]
        loser = {"small": "other", "other": "small"}[winner]
        winners.add(winner)
        assert (outcomes[winner] or history[0]).reason == history[0].reason
        assert outcomes[loser] is None or not outcomes[loser].promoted
        check_run_again(moved(cases[loser], store), winner)
        moment += 1
    assert moment > 20 and winners == ({"small", "other"} if late else {"other"})
    assert audit.verify(store, "small").ok and audit.verify(store, "other").ok


def check_run_again(loser: Case, winner: str) -> None:
    """Who lost is compared with the winner when it is run again, and refused: it is no better."""
    decision = attempt(loser)
    assert decision is not None and not decision.promoted and f"the champion {winner}@3" in decision.reason
    assert len(registry.read(loser.session.store, "small", "production")[0].history) == 1


class Killed(BaseException):
    """The driver's end."""


@pytest.mark.parametrize("late", [False, True])
def test_a_driver_killed_at_every_call_is_finished_by_the_next(
    world: tuple[dict[str, Any], dict[str, Case]], late: bool
) -> None:
    objects, cases = world

    def die() -> None:
        raise Killed

    moment, died = 0, True
    while died:
        store = Interrupted(objects, moment, die, late=late)
        case = moved(cases["small"], store)
        try:
            promote.promote(case, yes)
            died = False
        except Killed:
            pass
        store.moment = -1
        decision = promote.promote(case, yes)
        assert decision is not None and decision.promoted
        (entry,) = registry.read(store, "small", "production")[0].history
        made = decisions.newest(store, case.base)
        assert made is not None and entry.decision == made[0] and entry.approved_by == "Ada"
        assert len(store.list(f"{case.base}/decisions/")) == 1
        moment += 1
    assert moment > 20 and audit.verify(store, "small").ok
