"""Carrying out what `tasks.expiry_plan` says, so that it may be killed anywhere and done again.

Of every checkpoint the tombstone comes first, as `marked`. Then everything that may refer to it is read once more:
whoever writes down a lasting reference does that first and looks for a tombstone afterwards, so that one of the two
sees the other. What is still not referred to becomes `expired`, which is for ever, and only then are files removed.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from schemas import keys
from schemas.errors import RunStopped
from schemas.expired import Expired
from schemas.manifest import CheckpointManifest
from storage.expired import read_tombstone
from storage.many import many
from storage.objects import GenerationMismatch, ObjectStore, prune
from tasks.expiry_plan import Item, RunPlan, plan_run
from tasks.inventory import learner_folder
from tasks.lease import HeldLease, LeaseTaken, hold, is_alive
from tasks.references import references


def preview(store: ObjectStore, runs: list[str], now: Callable[[], float] = time.time) -> Iterator[RunPlan]:
    """What `collect` would do; nothing is written, so age is by this machine's clock.

    A run that somebody drives is left alone.
    """
    refers = references(store)
    for run in runs:
        if is_alive(store, keys.run_lease(run)):
            yield RunPlan(run, (), 0, f"run {run} is being driven")
        else:
            yield plan_run(store, run, refers, now())


def collect(store: ObjectStore, runs: list[str], now: Callable[[], float] | None = None) -> Iterator[RunPlan]:
    """Remove what the runs' retention does not keep, run by run; each plan is given as it was carried out.

    A run's lease is held meanwhile, so that nobody drives it or promotes. RunStopped where a store fails or
    the lease is lost: the same command goes on from there. `now`: by default the clock by which the store dates files.
    """
    refers = references(store)
    for run in runs:
        try:
            with hold(store, keys.run_lease(run), f"run {run}", run=run) as lease:
                clock = now or partial(_store_time, store, run)
                yield _carry_out(store, plan_run(store, run, refers, clock()), lease, clock)
        except LeaseTaken as error:
            yield RunPlan(run, (), 0, str(error))


def _store_time(store: ObjectStore, run: str) -> float:
    """The store's own time, which nobody else's need agree with: that of the lease, which is being renewed."""
    stat = store.head(keys.run_lease(run))
    if stat is None:
        raise RunStopped(f"{keys.run_lease(run)} is gone: run `headrace gc` again")
    return stat.modified


def _carry_out(store: ObjectStore, plan: RunPlan, lease: HeldLease, now: Callable[[], float]) -> RunPlan:
    marks = _Marks(store, plan.run, lease, now)
    for item in plan.items:
        if item.kind == "checkpoint" and item.kept and item.tombstone == "marked":
            marks.revive(item)
    items = marks.settle(many(marks.mark, plan.items))
    removed = [item for item in items if not item.kept]
    marks.check_lease()
    many(store.delete, [key for item in removed for key in item.files])
    for folder in {learner_folder(key) for item in removed for key in item.files}:
        prune(store, folder)
    return replace(plan, items=tuple(items))


@dataclass(frozen=True)
class _Marks:
    """The tombstones of one run's checkpoints. Each moves by compare-and-swap: of two that believe that they hold the
    lease, one does."""

    store: ObjectStore
    run: str
    lease: HeldLease
    now: Callable[[], float]

    def check_lease(self) -> None:
        if self.lease.lost:
            raise RunStopped(f"another process has taken over run {self.run}: run `headrace gc` again later")

    def mark(self, item: Item) -> Item:
        """Write the tombstone of a checkpoint that is to go; others are passed on."""
        if item.kept or item.kind != "checkpoint" or item.tombstone in ("marked", "expired"):
            return item
        self.check_lease()
        standing = read_tombstone(self.store, item.base, item.step)
        self._swap(item, _tombstone(self.store, item, self.now()), standing[1] if standing else 0)
        return replace(item, tombstone="marked")

    def settle(self, items: list[Item]) -> list[Item]:
        """Let what is marked expire, unless it is referred to by now."""
        if not any(self._waits(item) for item in items):
            return items
        refers = references(self.store)
        return many(lambda item: self._settled(item, refers.to) if self._waits(item) else item, items)

    def _waits(self, item: Item) -> bool:
        return not item.kept and item.tombstone == "marked"

    def _settled(self, item: Item, referred: Callable[..., str]) -> Item:
        tombstone, generation = self._standing(item)
        why = referred(item.run, tombstone.policy)
        state = "kept" if why else "expired"
        self.check_lease()
        self._swap(item, tombstone.model_copy(update={"state": state}), generation)
        return replace(item, kept=bool(why), why=why or item.why, tombstone=state)

    def revive(self, item: Item) -> None:
        """Void the tombstone of a checkpoint that was marked and is kept after all; nothing of it is removed yet."""
        tombstone, generation = self._standing(item)
        self._swap(item, tombstone.model_copy(update={"state": "kept"}), generation)

    def _standing(self, item: Item) -> tuple[Expired, int]:
        found = read_tombstone(self.store, item.base, item.step)
        if found is None or found[0].state != "marked":
            raise self._lost(item)
        return found

    def _swap(self, item: Item, tombstone: Expired, generation: int) -> None:
        try:
            self.store.swap(keys.checkpoint_expired(item.base, item.step), tombstone.to_bytes(), generation)
        except GenerationMismatch as error:
            raise self._lost(item) from error

    def _lost(self, item: Item) -> RunStopped:
        return RunStopped(f"another `headrace gc` is at work on {item.name}: run it again later")


def _tombstone(store: ObjectStore, item: Item, now: float) -> Expired:
    key = keys.checkpoint_manifest(item.base, item.step)
    manifest = CheckpointManifest.from_bytes(store.get(key).data, key)
    return Expired(
        state="marked",
        run=item.run,
        rl=item.base.rpartition("/rl-")[2],
        step=item.step,
        params_sha256=manifest.params_sha256,
        optimizer_sha256=manifest.optimizer_sha256,
        policy=manifest.policy,
        ledger_head=manifest.ledger_head,
        rule=item.why,
        files=len(item.files),
        bytes=item.bytes,
        time=now,
    )
