"""Each rule of the protocol, undone: the simulator must notice, or it proves nothing of the rule.

Numbers are those of `docs/design.md`, section 4. What the simulator can't undo, and what holds it up instead:

* 7, seeds of requests, and 20, updates that aren't finite: nothing is sampled or computed here; see `test_collect.py`
  and `test_snapshot.py`.
* 21, no held lock: the store is memory; see `test_folder_store.py`.
"""

import dataclasses
import re
from collections.abc import Callable

import pytest
from support.protocol import BASE
from support.simulated_worker import SimulatedWorker
from support.simulation import Simulation

import storage.ledger
from rollout.claims import Assignment, ClaimBoard
from rollout.sealed import SealedSamples
from schemas import keys
from schemas.errors import Fenced
from schemas.ledger import encode, record_digest
from schemas.manifest import WorkerState
from storage import control
from storage.shards import ShardWriter
from trainer import recovery
from trainer.assembler import Group, GroupAssembler
from trainer.candidates import ClaimWatch
from trainer.learner import AgenticRLLearner
from trainer.progress import Bounds, Progress
from trainer.publish import Publisher
from trainer.staleness import StalenessPolicy
from trainer.successor import SuccessorWatch
from trainer.tail import ShardTail
from trainer.window import WindowWriter

Undo = Callable[[pytest.MonkeyPatch], None]
RULES: dict[str, tuple[Undo, str, int]] = {}
"""Name of a rule → how to undo it, the words in which that is noticed, and a seed that notices it."""
MORE_SEEDS = range(150)
"""Tried where the seed no longer does: any change of what is read or written when changes what happens to whom."""


def rule(notices: str, seed: int) -> Callable[[Undo], Undo]:
    def note(undo: Undo) -> Undo:
        RULES[undo.__name__] = (undo, notices, seed)
        return undo

    return note


@rule("bound is", 0)
def rule_1_the_window_is_an_absolute_limit(patch):
    def admit(self, bounds):
        limit = self.limit + bounds.groups_per_batch if self.limit else bounds.window(self.step)
        self.admitted.update(dict.fromkeys(range(self.limit, limit), self.step))
        self.limit = max(self.limit, limit)

    patch.setattr(Progress, "admit", admit)


@rule("left over at the end", 0)
def rule_2_the_window_shrinks_towards_the_end(patch):
    patch.setattr(Bounds, "window", lambda self, step: (self.max_staleness + 1) * self.groups_per_batch)


@rule("went back", 15)
def rule_3_the_window_only_moves_forward(patch):
    def look(self, wanted):
        found = control.read_window(self._store, self._base)
        self._generation = found[1] if found else 0

    patch.setattr(WindowWriter, "_look", look)


@rule("dropped as stale", 5)
def rule_3_episodes_start_with_the_windows_policy(patch):
    round_ = SimulatedWorker.round

    def old(self, window):
        keep = self.version
        done = round_(self, window)
        self.version = max(keep, self.version - 1)
        return done

    patch.setattr(SimulatedWorker, "round", old)


@rule("worker ids must be unique|stuck", 15)
def rule_4_a_workers_id_is_new(patch):
    begin = SimulatedWorker.__init__
    patch.setattr(SimulatedWorker, "__init__", lambda self, sim, name: begin(self, sim, f"w{int(name[1:]) % 3}"))


@rule("stuck|no registered", 70)
def rule_4_a_worker_registers_before_it_claims(patch):
    def late(self):
        return WorkerState(
            worker=self.name, number=-1, host="h", pid=1, state="running", beat=0, version=-1, next_seq=0, counters={}
        )

    def beat(store, base, state):
        number = numbers.get(state.worker)
        if number is None:
            number = control.register_worker(store, base, worker=state.worker, host="h", pid=1).number
            numbers[state.worker] = number
        known(store, base, state.model_copy(update={"number": number}))

    numbers: dict[str, int] = {}
    known = control.beat
    patch.setattr(SimulatedWorker, "register", late)
    patch.setattr(control, "beat", beat)


@rule("stuck", 13)
def rule_5_a_dead_owners_group_is_taken_over(patch):
    patch.setattr(ClaimBoard, "watch", lambda self, window, playing: None)
    patch.setattr(ClaimWatch, "overdue", lambda self, group: "")


@rule("stuck", 47)
def rule_5_past_the_takeover_limit_the_learner_ends_the_group(patch):
    patch.setattr(ClaimWatch, "overdue", lambda self, group: "")


@rule("stands twice", 14)
def rule_5_takeover_is_a_compare_and_swap(patch):
    def take(store, base, claim, generation, worker):
        new = {"owner": worker, "owners": (*claim.owners, worker), "takeovers": claim.takeovers + 1}
        taken = claim.model_copy(update=new)
        store.put(keys.claim(base, claim.group), taken.to_bytes())
        return taken

    patch.setattr(control, "take_over", take)


@rule("stands twice", 4)
def rule_5_takeover_keeps_the_count(patch):
    def forget(self, window):
        found = take(self, window)
        return Assignment(found.group, 0, found.samples) if found else None

    take = ClaimBoard._take_over
    patch.setattr(ClaimBoard, "_take_over", forget)


@rule("though it was sealed", 0)
def rule_5_the_taker_makes_only_what_is_missing(patch):
    patch.setattr(SealedSamples, "settled", lambda self, group, owners: set())


@rule("is taken for dead", 0)
def rule_6_a_lease_expires_when_the_heartbeat_has_not_changed(patch):
    def since_first_seen(self, name, generation):
        first = self._seen.setdefault(name, (generation, self._clock()))
        return self._clock() - first[1] < self._seconds

    patch.setattr(control.LeaseWatch, "alive", since_first_seen)


@rule("ended by its deadline alone|stuck", 16)
def rule_8_an_idle_worker_seals_at_once(patch):
    patch.setattr(ShardWriter, "due", lambda self, idle=False: len(self._rows) >= self._limits[0])


@rule("no disposition", 2)
def rule_9_the_cursor_stays_at_the_lowest_row_without_a_disposition(patch):
    patch.setattr(ShardTail, "cursor", lambda self: {w.id: w.next_seq for w in self.workers.values()})


@rule("unreadable|damaged", 0)
def rule_10_an_unreadable_shard_is_recorded(patch):
    patch.setattr(ShardTail, "take_unreadable", lambda self: [])


@rule("ended by its deadline alone|stuck", 44)
def rule_10_its_samples_are_played_again_by_a_living_owner(patch):
    patch.setattr(ClaimBoard, "_lost", lambda self, group: None)


@rule("no disposition", 57)
def rule_11_the_first_row_of_a_sample_wins(patch):
    add = GroupAssembler.add

    def last_wins(self, row, *, ended):
        if not ended and not row.trajectory.failed:
            self._group(row.trajectory.group).samples.pop(row.trajectory.sample, None)
        add(self, row, ended=ended)

    patch.setattr(GroupAssembler, "add", last_wins)


@rule("stuck", 8)
def rule_12_a_step_runs_with_what_there_is(patch):
    select = StalenessPolicy.select

    def strict(self, progress, candidates):
        found = select(self, progress, candidates)
        return found if found and len(found.train) == self.bounds.groups_per_batch else None

    patch.setattr(StalenessPolicy, "select", strict)


@rule("stuck", 7)
def rule_12_a_step_without_a_trainable_group_still_raises_the_version(patch):
    select = StalenessPolicy.select

    def busy(self, progress, candidates):
        found = select(self, progress, candidates)
        return found if found and found.train else None

    patch.setattr(StalenessPolicy, "select", busy)


@rule("bound is|stuck|left over", 7)
def rule_12_every_settled_group_ends_in_the_same_record(patch):
    select = StalenessPolicy.select

    def only_trained(self, progress, candidates):
        found = select(self, progress, candidates)
        return dataclasses.replace(found, settle={}) if found and found.train else found

    patch.setattr(StalenessPolicy, "select", only_trained)


@rule("dropped as stale", 2)
def rule_13_a_step_waits_for_groups_that_are_about_to_turn_stale(patch):
    patch.setattr(StalenessPolicy, "_paced", lambda self, progress, waiting: True)


@rule("order", 1)
def rule_14_batches_are_ordered_by_group_and_sample(patch):
    patch.setattr(Group, "survivors", lambda self: list(self.samples.values()))


@rule("hash chain", 2)
def rule_15_the_loser_of_a_record_stops(patch):
    def adopt(store, base, index, record):
        try:
            return append(store, base, index, record)
        except Fenced:
            return record_digest(encode(record))

    append = storage.ledger.append
    patch.setattr(storage.ledger, "append", adopt)


@rule("though it was sealed", 0)
def rule_15_claims_are_never_deleted(patch):
    def end(self, rows, kind, *, updates):
        append(self, rows, kind, updates=updates)
        for group in range(self.progress.low):
            self.store.delete(keys.claim(BASE, group))

    append = AgenticRLLearner._append
    patch.setattr(AgenticRLLearner, "_append", end)


@rule("is torn", 139)
def rule_16_each_learner_writes_into_folders_of_its_own(patch):
    for name in ("policy_weights", "checkpoint_files"):
        folder = getattr(keys, name)
        patch.setattr(keys, name, lambda base, number, learner, folder=folder: folder(base, number, "shared"))


@rule("stuck|no published policy", 0)
def rule_17_recovery_publishes_and_moves_the_window_first(patch):
    publish, move = AgenticRLLearner._publish, WindowWriter.move

    def only_fresh(self, *, force=False):
        if not force or self.progress.step == 0:
            publish(self, force=force)

    def lazily(self, progress, published, *, closed=False, force=False):
        return move(self, progress, published, closed=closed, force=force) if progress.step == published else True

    patch.setattr(AgenticRLLearner, "_publish", only_fresh)
    patch.setattr(WindowWriter, "move", lazily)


@rule("no end marker", 0)
def rule_18_an_end_marker_closes_every_log(patch):
    patch.setattr(ShardTail, "mark_ends", lambda self: True)


@rule("what the ledger trained", 29)
def rule_19_the_first_published_policy_stands(patch):
    patch.setattr(recovery, "compare", lambda base, standing, updater: "")


@rule("whose weights are gone", 3)
def rule_22_the_weights_of_the_newest_versions_are_kept(patch):
    retire = Publisher.retire
    patch.setattr(
        Publisher, "retire", lambda self, version, kept: retire(dataclasses.replace(self, keep=1), version, kept)
    )


@rule("which another has written", 52)
def rule_23_a_waiting_learner_looks_for_its_successor(patch):
    patch.setattr(SuccessorWatch, "look", lambda self, index: None)


@pytest.mark.parametrize("name", sorted(RULES))
def test_undoing_a_rule_is_noticed(name, monkeypatch):
    undo, notices, seed = RULES[name]
    undo(monkeypatch)
    assert any(noticed(notices, s) for s in (seed, *MORE_SEEDS)), f"no seed noticed that `{name}` was undone"


def noticed(notices: str, seed: int) -> bool:
    """Whether this seed breaks an invariant, or crashes the code under test, with these words."""
    try:
        Simulation(seed).run()
    except Exception as error:
        return re.search(notices, str(error)) is not None
    return False
