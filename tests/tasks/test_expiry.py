"""`headrace gc` on real histories: what stays works, what goes is named, and a death at any moment changes nothing."""

import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from support import gcs_stores
from support.audited import end, turn
from support.kept import DAYS, chosen, copy, crown, finished, retrained, settings, trained, write_run
from support.protocol import BASE, FakeWorker, learner

from schemas import keys
from schemas.errors import RequestError, RunStopped
from schemas.manifest import Lease, WeightsRef
from schemas.promotion import GateDecision
from storage import audit, many
from storage.audit_runs import checkpoints, find_checkpoint
from storage.expired import check_weights, expired_checkpoints, read_tombstone
from storage.memory import MemoryStore
from storage.open import open_store
from tasks import decisions, expiry, registry
from tasks.expiry import collect, preview
from tasks.expiry_plan import chosen_runs
from tasks.references import references

NEVER = {"min_age_hours": 0.0}
STEPS = 12
STORES = {
    "memory": lambda folder: MemoryStore("gc"),
    "folder": lambda folder: open_store(str(folder / "store")),
    "gcs": gcs_stores.STORES["gcs"],
    "gcs with faults": gcs_stores.STORES["gcs with faults"],
}


@pytest.fixture
def run():
    return settings(STEPS, {"keep_last": 2, "keep_every": 6})


@pytest.fixture
def store(run):
    """A run with checkpoints 2, 4, … 12; 4 was promoted, and another run starts from 8."""
    made = MemoryStore("gc")
    finished(made, run)
    crown(made, ("test@4", policy(made, 4)), ("test@12", policy(made, 12)))
    write_run(made, run, "child", policy(made, 8))
    return made


def policy(store, step) -> WeightsRef:
    return find_checkpoint(store, "test", step)[1].policy


def later():
    return time.time() + 2 * DAYS


def swept(store, now=later, names=("test",)):
    return list(collect(store, list(names), now))


def there(store):
    """Steps whose checkpoints have all their files."""
    whole = []
    for c in checkpoints(store, BASE):
        parts = [store.list(f"{prefix}/") for prefix in (c.prefix, c.policy.prefix)]
        assert all(parts) or c.step in expired_checkpoints(store, BASE)
        whole += [c.step] if all(parts) else []
    return whole


def content(store):
    return {key: store.get(key).data for key in store.list("") if not key.endswith("/lease.json")}


def test_what_stays_and_why(store):
    (plan,) = swept(store)
    assert {i.step: i.why for i in chosen(plan, kept=True) if i.kind == "checkpoint"} == {
        4: "in the history of test/production",
        6: "keep_every = 6",
        8: "run child starts from it",
        10: "keep_last = 2",
        12: "keep_last = 2",
    }
    gone = chosen(plan, kept=False)
    assert [(i.kind, i.name, i.why) for i in gone] == [
        ("checkpoint", "test@2", "keep_last = 2, keep_every = 6"),
        ("policy", f"{BASE}/policies/00000000/L1", "no checkpoint needs it"),
    ]
    assert gone[0].bytes > 0 and there(store) == [4, 6, 8, 10, 12]
    with pytest.raises(RequestError, match=r"test@2's snapshot and weights expired on .* \(keep_last = 2"):
        check_weights(store, policy(store, 2))


def test_only_checkpoints_lose_anything(store):
    before = content(store)
    swept(store)
    lost = before.keys() - content(store).keys()
    assert sorted(lost) == [
        f"{BASE}/checkpoints/00000002/L1/params",
        f"{BASE}/policies/00000000/L1/weights",
        f"{BASE}/policies/00000002/L1/weights",
    ]


def test_a_dry_run_says_the_same_and_writes_nothing(store):
    before = {key: store.get(key) for key in store.list("")}
    (seen,) = preview(store, ["test"], later)
    assert {key: store.get(key) for key in store.list("")} == before
    (done,) = swept(store)
    assert [(i.name, i.kept, i.why, i.bytes) for i in seen.items] == [
        (i.name, i.kept, i.why, i.bytes) for i in done.items
    ]


def test_a_second_time_removes_nothing(store):
    swept(store)
    before = content(store)
    (plan,) = swept(store)
    assert chosen(plan, kept=False) == [] and plan.expired == 1
    assert content(store) == before


def test_nothing_young_goes(store):
    (plan,) = swept(store, time.time)
    assert chosen(plan, kept=False) == []


def test_a_run_that_somebody_drives_is_left_alone(store):
    key = keys.run_lease("test")
    lease = Lease(owner="o", host="elsewhere", pid=1, seconds=5.0, beat=0)
    store.put(key, lease.to_bytes())
    done = threading.Event()

    def renew() -> None:
        while not done.wait(0.05):
            store.put(key, lease.to_bytes())

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        plans = [*preview(store, ["test"], later), *swept(store)]
    finally:
        done.set()
        thread.join()
    assert ["being driven" in p.skipped for p in plans] == [True, True]
    assert there(store) == [2, 4, 6, 8, 10, 12]


def test_everything_kept_is_sound_and_retrained_to_the_bit(store, run):
    swept(store)
    found = audit.verify(store, "test")
    assert found.ok and found.total("expired") == 1
    for step in (2, 4, 6, 8, 10, 12):
        assert retrained(store, run, step).bitwise


def test_rollback_after_it(store):
    swept(store)
    assert registry.rollback(store, "test", "production", None, "worse").ref == "test@4"


def test_resume_after_it():
    store, run = MemoryStore("resume"), settings(STEPS, {"keep_last": 1, **NEVER})
    first, workers = trained(store, run, 9)
    (plan,) = swept(store)
    assert {i.step for i in chosen(plan, kept=False)} == {0, 2, 4, 6}
    second = learner(store, run, "L2")
    assert second.recover() == 1
    assert second.updater.params == first.updater.params
    workers.append(FakeWorker(store, run, "w2"))
    turn(second, workers, STEPS)
    end(second, workers)
    assert audit.verify(store, "test").ok
    assert all(retrained(store, run, c.step).bitwise for c in checkpoints(store, BASE))


@pytest.mark.parametrize("name", STORES)
def test_on_every_store(name, tmp_path: Path):
    store, run = STORES[name](tmp_path), settings(8, {"keep_last": 1})
    finished(store, run)
    crown(store, ("test@4", policy(store, 4)))
    assert [chosen(p, kept=False) for p in swept(store, time.time)] == [[]]
    assert [i.step for i in chosen(swept(store)[0], kept=False)] == [2, 0]
    assert there(store) == [4, 6, 8]
    assert audit.verify(store, "test").ok and retrained(store, run, 4).start == 0


# -- other files --------------------------------------------------------------------------------------------------


def test_copies_that_no_manifest_names_go_when_they_are_old(store):
    torn = f"{BASE}/checkpoints/00000099/L9/params"
    lost = [f"{BASE}/checkpoints/00000012/L9/params", f"{BASE}/policies/00000012/L9/weights"]
    for key in (torn, *lost):
        store.put(key, b"12345")
    (plan,) = swept(store, lambda: time.time() + 3600)
    assert [i.why for i in plan.items if i.kind == "leftover"] == [
        "no manifest names it, but it is younger than 24 h"
    ] * 3
    (plan,) = swept(store)
    assert sorted((i.why, i.bytes) for i in plan.items if i.kind == "leftover") == [
        ("another learner's copy stands", 5), ("another learner's copy stands", 5),
        ("its learner died before it was whole", 5),
    ]  # fmt: skip
    assert [store.head(key) for key in (torn, *lost)] == [None] * 3


def test_a_torn_copy_may_be_in_the_making_whatever_the_settings(store, run):
    write_run(store, settings(STEPS, {"keep_last": 2, **NEVER}))
    store.put(f"{BASE}/checkpoints/00000099/L9/params", b"1")
    (plan,) = swept(store, time.time)
    assert [i.kept for i in plan.items if i.kind == "leftover"] == [True]


def test_weights_that_a_killed_learner_did_not_retire_go(store):
    prefix = policy(store, 2).prefix.replace("00000002", "00000001")
    store.put(f"{prefix}/weights", b"old")
    (plan,) = swept(store)
    assert [(i.name, i.kept) for i in plan.items if i.kind == "policy" and i.step == 1] == [(prefix, False)]
    assert store.list(f"{prefix}/") == []
    assert [i.why for i in plan.items if i.kind == "policy" and i.kept] == ["one of the newest 3 policies"]


# -- death and races ----------------------------------------------------------------------------------------------


class Killed(BaseException):
    """What a dead process does not catch."""


class Mortal(MemoryStore):
    """Calls `event` with itself before write number `moment` (writes of leases are not counted)."""

    moment = -1
    writes = 0
    event = None

    def _count(self, key: str) -> None:
        if not key.endswith("/lease.json"):
            now, self.writes = self.writes == self.moment, self.writes + 1
            if now:
                self.event(self)

    def swap(self, key: str, data: bytes, generation: int) -> int:
        self._count(key)
        return super().swap(key, data, generation)

    def delete(self, key: str) -> None:
        self._count(key)
        super().delete(key)


def mortal(store, moment, event) -> Mortal:
    made = Mortal("mortal")
    made.__dict__.update(copy(store).__dict__)
    made.moment, made.event = moment, event
    return made


def die(store) -> None:
    raise Killed


@pytest.fixture
def one_thread(monkeypatch):
    monkeypatch.setattr(many, "THREADS", 1)


def test_killed_at_every_write_the_next_one_finishes(run, one_thread):
    store = MemoryStore("kill")
    finished(store, settings(8, {"keep_last": 1}))
    whole = copy(store)
    swept(whole)
    moment = 0
    while True:
        made = mortal(store, moment, die)
        try:
            swept(made)
            break
        except Killed:
            pass
        made.moment = -1
        dying = {k for k, e in expired_checkpoints(made, BASE).items() if e.state == "expired"}
        assert set(there(made)) >= {2, 4, 6, 8} - dying
        assert audit.verify(made, "test").ok
        swept(made)
        assert made.list("") == whole.list("")
        assert audit.verify(made, "test").ok and there(made) == [6, 8]
        moment += 1
    assert moment == 2 * 2 + 2 * 2 + 1  # two writes for each of two tombstones, two files for each, version 0


def test_whoever_comes_to_refer_to_it_at_any_moment_keeps_it_or_is_told(store, one_thread):
    """A gate's decision is written, then the tombstone is looked for: as `tasks.promote` does it."""
    moment, kept, told = 0, 0, 0
    while True:
        taken: list[bool] = []

        def promote(made, taken=taken) -> None:
            decide(made, 2)
            try:
                check_weights(made, policy(made, 2))
            except RequestError:
                taken.append(False)
            else:
                taken.append(True)

        made = mortal(store, moment, promote)
        swept(made)
        if not taken:
            break
        assert taken[0] <= (2 in there(made))
        kept, told = kept + taken[0], told + (not taken[0])
        swept(made)
        assert taken[0] <= (2 in there(made))
        moment += 1
    assert (kept, told) == (1, 4)


def decide(store, step):
    decision = GateDecision(
        candidate=f"test@{step}", weights_sha256=policy(store, step).sha256, baseline="", baseline_sha256="b",
        promoted=True, improvement=1, low=1, high=1, confidence=0.95, reason="", reports=(), time=0.0,
    )  # fmt: skip
    decisions.write(store, keys.gate("test", "g"), decision)


def test_marked_and_then_referred_to_is_void(store, one_thread):
    made = mortal(store, 1, die)
    with pytest.raises(Killed):
        swept(made)
    made.moment = -1
    assert read_tombstone(made, BASE, 2)[0].state == "marked"
    decide(made, 2)
    (plan,) = swept(made)
    assert {i.step: i.why for i in plan.items if i.kept}[2] == "its gate took it (test@2)"
    check_weights(made, policy(made, 2))
    assert there(made) == [2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize("referred", [False, True])
def test_two_at_once_are_harmless(store, one_thread, referred):
    """The second comes in between any two writes of the first, whose lease was taken from it meanwhile. Where a gate
    took the checkpoint before the first has let it expire, it stays."""
    for moment in range(4):

        def second(made) -> None:
            made.moment = -1
            made.delete(keys.run_lease("test"))
            if referred:
                decide(made, 2)
            swept(made)

        made = mortal(store, moment, second)
        try:
            swept(made)
        except RunStopped as error:
            assert "another" in str(error)
        assert there(made) == [*([2] if referred and moment < 2 else []), 4, 6, 8, 10, 12]
        assert audit.verify(made, "test").ok


def test_a_mark_that_another_has_voided_meanwhile_is_not_taken_up(store, monkeypatch):
    """A gate takes the checkpoint after the first asked who refers to it; the second sees that and voids the mark."""
    asked = []

    def slow(made):
        found = references(made)
        asked.append(made)
        if len(asked) == 2:
            decide(made, 2)
            made.delete(keys.run_lease("test"))
            swept(made)
        return found

    monkeypatch.setattr(expiry, "references", slow)
    with pytest.raises(RunStopped, match="another `headrace gc` is at work on test@2"):
        swept(store)
    assert there(store) == [2, 4, 6, 8, 10, 12]
    check_weights(store, policy(store, 2))


def test_whoever_has_lost_the_lease_removes_nothing(store, monkeypatch):
    before = content(store)
    monkeypatch.setattr(expiry, "hold", lambda *_, **__: nullcontext(SimpleNamespace(lost=True)))
    with pytest.raises(RunStopped, match="another process has taken over run test"):
        swept(store)
    assert content(store) == before
    write_run(store, settings(STEPS, {"keep_last": 6}))  # no tombstone, only weights without a checkpoint
    before = content(store)
    with pytest.raises(RunStopped, match="another process has taken over run test"):
        swept(store)
    assert content(store) == before


def test_an_unknown_run_is_refused(store):
    assert chosen_runs(store, []) == ["child", "test"]
    with pytest.raises(RequestError, match="no run `nobody`"):
        chosen_runs(store, ["nobody"])


@given(st.data())
@examples(max_examples=15, deadline=None)
def test_any_history_any_settings(data):
    """Whatever is promoted and started from, however often it is swept: nothing needed goes, all is retrained."""
    store, run = HISTORY
    store = copy(store)
    rule = data.draw(st.fixed_dictionaries({"keep_last": st.integers(1, 4), "keep_every": st.integers(0, 7)}))
    write_run(store, settings(STEPS, rule | NEVER))
    steps = st.sampled_from(range(2, STEPS + 1, 2))
    for round in range(3):
        alive = there(store)
        promoted = data.draw(st.lists(steps, max_size=3))
        started = data.draw(st.lists(steps, max_size=2))
        named = {s for s in (*promoted, *started) if s in alive}
        crown(store, *((f"test@{s}", policy(store, s)) for s in named if s in promoted), channel=f"c{round}")
        for s in named & set(started):
            write_run(store, run, f"child-{round}-{s}", policy(store, s))
        swept(store)
        assert set(there(store)) >= named | set(alive[-rule["keep_last"] :])
        assert audit.verify(store, "test").ok
        assert all(retrained(store, run, step).bitwise for step in there(store))


def history():
    store, run = MemoryStore("history"), settings(STEPS, {})
    finished(store, run)
    return store, run


HISTORY = history()
