"""Each rule of the protocol, undone: the simulator must notice within a few seeds, or it proves nothing of the rule."""

from collections.abc import Callable

import pytest
from support.simulation import SimulatedWorker, Simulation, Violation

import storage.ledger
from rollout.claims import ClaimBoard
from schemas.errors import Fenced
from schemas.ledger import encode, record_digest
from trainer.assembler import GroupAssembler
from trainer.candidates import ClaimWatch
from trainer.learner import AgenticRLLearner
from trainer.progress import Progress
from trainer.staleness import StalenessPolicy
from trainer.tail import ShardTail
from trainer.window import WindowWriter

Undo = Callable[[pytest.MonkeyPatch], None]
RULES: dict[str, tuple[Undo, str]] = {}
"""Name of a rule → how to undo it, and what must be noticed."""


def rule(notices: str) -> Callable[[Undo], Undo]:
    def note(undo: Undo) -> Undo:
        RULES[undo.__name__] = (undo, notices)
        return undo

    return note


@rule("no disposition")
def the_cursor_stays_at_the_lowest_row_without_a_disposition(patch):
    patch.setattr(ShardTail, "cursor", lambda self: {w.id: w.next_seq for w in self.workers.values()})


@rule("stuck")
def a_step_runs_with_what_there_is(patch):
    select = StalenessPolicy.select

    def strict(self, progress, candidates):
        found = select(self, progress, candidates)
        return found if found and len(found.train) == self.bounds.groups_per_batch else None

    patch.setattr(StalenessPolicy, "select", strict)


@rule("")
def an_end_marker_closes_every_log(patch):
    patch.setattr(ShardTail, "mark_ends", lambda self: True)


@rule("")
def the_loser_of_a_record_stops(patch):
    def adopt(store, base, index, record):
        try:
            return append(store, base, index, record)
        except Fenced:
            return record_digest(encode(record))

    append = storage.ledger.append
    patch.setattr(storage.ledger, "append", adopt)


@rule("went back")
def the_window_only_moves_forward(patch):
    def look(self, wanted):
        from storage.control import read_window

        found = read_window(self._store, self._base)
        self._generation = found[1] if found else 0

    patch.setattr(WindowWriter, "_look", look)


@rule("stuck")
def recovery_publishes_and_moves_the_window_first(patch):
    publish, move = AgenticRLLearner._publish, WindowWriter.move

    def only_fresh(self, *, force=False):
        if not force or self.progress.step == 0:
            publish(self, force=force)

    def lazily(self, progress, published, *, closed=False, force=False):
        return move(self, progress, published, closed=closed, force=force) if progress.step == published else True

    patch.setattr(AgenticRLLearner, "_publish", only_fresh)
    patch.setattr(WindowWriter, "move", lazily)


@rule("bound is")
def the_window_is_an_absolute_limit(patch):
    def admit(self, bounds):
        limit = self.limit + bounds.groups_per_batch if self.limit else bounds.window(self.step)
        self.admitted.update(dict.fromkeys(range(self.limit, limit), self.step))
        self.limit = max(self.limit, limit)

    patch.setattr(Progress, "admit", admit)


@rule("stuck")
def a_dead_owners_group_is_taken_over(patch):
    patch.setattr(ClaimBoard, "watch", lambda self, window: None)
    patch.setattr(ClaimWatch, "overdue", lambda self, group: "")


@rule("stuck")
def past_the_takeover_limit_the_learner_ends_the_group(patch):
    patch.setattr(ClaimWatch, "overdue", lambda self, group: "")


@rule("")
def the_first_row_of_a_sample_wins(patch):
    add = GroupAssembler.add

    def last_wins(self, row, *, ended):
        if not ended and not row.trajectory.failed:
            self._group(row.trajectory.group).samples.pop(row.trajectory.sample, None)
        add(self, row, ended=ended)

    patch.setattr(GroupAssembler, "add", last_wins)


@rule("stale")
def a_step_waits_for_groups_that_are_about_to_turn_stale(patch):
    patch.setattr(StalenessPolicy, "_paced", lambda self, progress, waiting: True)


@rule("stale")
def episodes_start_with_the_windows_policy(patch):
    round_ = SimulatedWorker.round

    def old(self, window):
        keep = self.version
        done = round_(self, window)
        self.version = max(keep, self.version - 1)
        return done

    patch.setattr(SimulatedWorker, "round", old)


@pytest.mark.parametrize("name", sorted(RULES))
def test_undoing_a_rule_is_noticed(name, monkeypatch):
    undo, notices = RULES[name]
    undo(monkeypatch)
    assert found(notices, seeds=range(60)), f"60 seeds did not notice that `{name}` was undone"


def found(notices: str, seeds: range) -> bool:
    """Whether a seed breaks an invariant in these words, or, for `stale`, drops stale groups at all."""
    for seed in seeds:
        try:
            counts = Simulation(seed).run()
        except Violation as violation:
            if notices in str(violation):
                return True
        except Exception:  # a crash of the code under test is also a notice
            if not notices:
                return True
        else:
            if notices == "stale" and counts["stale"]:
                return True
    return False


def test_with_every_rule_nothing_is_dropped_as_stale():
    counts = [Simulation(seed).run() for seed in range(20)]
    assert sum(c["stale"] for c in counts) == 0
