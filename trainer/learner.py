"""The learner: tails the log, decides what each step trains, writes that down, and only then trains it.

One turn of the wheel: poll the tail → assemble groups → let the staleness policy select → append the ledger record →
update → publish → move the window → maybe checkpoint. Between record and update it may die at any moment: recovery
replays the record.
"""

import json
import time
from collections.abc import Callable
from typing import Literal

from schemas.config import Run
from schemas.digest import digest
from schemas.errors import RunStopped
from schemas.ledger import Disposition, Kind, LedgerRow, Record, RecordMetadata
from schemas.manifest import PolicyManifest, RLSpec
from storage import ledger
from storage.ledger import Entry
from storage.objects import ObjectStore, write_pause
from trainer import closing, metrics, recovery
from trainer.advantages import find_advantage
from trainer.assembler import GroupAssembler, Row
from trainer.candidates import ClaimWatch, candidates
from trainer.checkpoints import write_checkpoint
from trainer.progress import Bounds, Progress, from_checkpoint
from trainer.publish import Publisher
from trainer.record import StepRows, step_rows
from trainer.shaping import shaping
from trainer.staleness import Selection, StalenessPolicy
from trainer.successor import SuccessorWatch
from trainer.tail import ShardTail
from trainer.updater import Updater
from trainer.window import WindowWriter

Report = Callable[..., None]
SHORTEST_PAUSE = 0.02
"""Seconds between two looks of a learner that has just begun to wait."""


class AgenticRLLearner:
    """Drives one RL stage to its end. Two learners on one stage are safe: the ledger lets one of them go on."""

    def __init__(
        self,
        store: ObjectStore,
        spec: RLSpec,
        base: str,
        updater: Updater,
        publisher: Publisher,
        *,
        report: Report,
        compact: Callable[[], None] = lambda: None,
        stop: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.config = Run.model_validate(spec.config)
        self.store, self.spec, self.base = store, spec, base
        self.updater, self.publisher = updater, publisher
        rl = self.config.rl
        self.bounds = Bounds(rl.groups_per_batch, rl.steps_behind, rl.steps)
        self.progress = Progress()
        self.policy = StalenessPolicy(
            self.bounds, filter_zero_advantage=rl.loss.filter_zero_advantage, least=rl.loss.least
        )
        self.assembler = GroupAssembler(rl.group_size, self.config.rollout.attempts)
        pause = max(rl.window_seconds, write_pause(store))
        self.window = WindowWriter(store, base, publisher.learner, pause, clock)
        self.watch = ClaimWatch(store, base, self.config, clock, wall)
        self.successor = SuccessorWatch(store, base, self.config.rollout.lease_seconds / 4, clock)
        self.published: PolicyManifest | None = None
        self.last_checkpoint: int | None = None
        self._report, self._stop, self._clock, self._sleep = report, stop, clock, sleep
        self._compact = compact
        self._shape = shaping(rl.loss, self.config.rollout.max_length, updater)
        self._advantage = find_advantage(rl.loss.advantage, spec.folder)
        self._time = metrics.Clock(clock)
        self._config_digest = digest(spec.config)

    # -- recovery ---------------------------------------------------------------------------------------------

    def recover(self) -> int:
        """Come to the head of the ledger, publish its policy, move the window; returns the records replayed."""
        manifest = recovery.newest_checkpoint(self.store, self.base)
        if manifest is not None:
            self.updater.load(manifest)
            self.progress = from_checkpoint(manifest)
            self.last_checkpoint = manifest.step
        self.policy.admit(self.progress)
        count = recovery.replay(self.store, self.base, self.progress, self.bounds, self._replay_step)
        self.progress.admit(self.bounds)
        if not self.finished():
            self._publish(force=True)
            self.window.move(self.progress, self._published_version(), closed=self._at_end(), force=True)
        self.tail = ShardTail(self.store, self.base, self.progress, self.spec)
        if not self.finished():
            self._checkpoint_missed()
        self._report("recovered", step=self.progress.step, replayed=count, checkpoint=self.last_checkpoint)
        return count

    def _replay_step(self, step: StepRows, entry: Entry) -> None:
        self._learn(step)
        version = entry.record.metadata.version + 1
        standing = self.publisher.read(version)
        if standing is not None and standing.dtype == "float32":
            remark = recovery.compare(self.base, standing, self.updater)
            if remark:
                self._report("log", message=remark)

    # -- the wheel --------------------------------------------------------------------------------------------

    def run(self) -> Literal["finished", "stopped"]:
        """Work until the run has closed or somebody asks to stop."""
        self.recover()
        waiting_since = self._clock()
        while not self._at_end():
            if self._stop():
                self._report("stopped", step=self.progress.step)
                return "stopped"
            if self.tick():
                waiting_since = self._clock()
            elif self._clock() - waiting_since > self.config.rl.idle_seconds:
                raise RunStopped(self._idle_cause())
            else:
                self._sleep(self._pause(self._clock() - waiting_since))
        return self.close()

    def _pause(self, waited: float) -> float:
        """Seconds until the next look at the shards: a step is found at most a quarter later than it could be."""
        return max(SHORTEST_PAUSE, min(waited / 4, self.config.rollout.poll_seconds))

    def tick(self) -> bool:
        """Poll once and make a step if one can be made."""
        self.tail.poll(self._deliver)
        self.window.move(self.progress, self._published_version())
        open_groups = self.progress.open_groups()
        self.watch.refresh([g for g in open_groups if not self.assembler.whole(g)], self.tail)
        found = candidates(self.progress, self.assembler, self.watch)
        selection = self.policy.select(self.progress, found)
        self._time.waited()
        if selection is None:
            self.successor.look(self.progress.index)
            return False
        self._step(selection)
        return True

    def _deliver(self, row: Row) -> None:
        newest = row.trajectory.newest_version
        if newest > self.progress.version:
            reason = f"policy {newest} sampled it, which this run had not reached"
            self.assembler.aside.append((row, Disposition.SUPERSEDED, reason))
            return
        self.assembler.add(row, ended=self.progress.is_ended(row.trajectory.group))

    def _step(self, selection: Selection) -> None:
        step = step_rows(
            selection,
            self.assembler,
            self.progress.version,
            self.config.rl,
            self._shape,
            self._advantage,
            self.assembler.take_aside(),
            self.tail.take_unreadable(),
        )
        self._append(step.ledger, "step", updates=self.config.rl.updates_on(len(selection.train)))
        began = self._clock()
        figures = self._learn(step)
        taken = self._clock() - began
        self._publish()
        checkpoint = self._checkpoint_due()
        if checkpoint:
            self._checkpoint()
        self.window.move(self.progress, self._published_version())
        self._tell(len(step.batch), figures, taken)
        if self.progress.empty_steps >= self.config.rl.max_empty_steps:
            raise RunStopped(self._empty_cause(step.ledger))

    def _learn(self, step: StepRows) -> dict[str, float]:
        """Train on the batch of a step, if it has one, and keep count of the step's figures, which are returned."""
        figures = metrics.summary(step)
        if step.batch:
            figures |= self.updater.update(step.batch, step.advantages)
            self.progress.note(metrics.kept(figures), len(step.batch))
        self.progress.figures = metrics.recorded(figures, trained=bool(step.batch))
        return figures

    def _append(self, rows: tuple[LedgerRow, ...], kind: str, *, updates: int) -> None:
        """Make the record durable, then take it in."""
        progress = self.progress
        metadata = RecordMetadata(
            step=progress.step,
            kind=kind,
            version=progress.version,
            updates=updates,
            learner=self.publisher.learner,
            config_digest=self._config_digest,
            prng=json.dumps({"seed": self.spec.seed, "counter": progress.step}),
            previous=progress.head,
            parent=self.spec.initial.sha256,
            figures=progress.figures,
        )
        record = Record(metadata, rows)
        head = ledger.append(self.store, self.base, progress.index, record)
        progress.apply(record, head, self.bounds)
        self.assembler.end(record.ended_groups())
        self.tail.recorded(_places(rows))

    # -- what follows a step ----------------------------------------------------------------------------------

    def _published_version(self) -> int:
        return self.published.version if self.published else 0

    def _publish(self, *, force: bool = False) -> None:
        """Publish the current version if it is due: every `publish_every` updates, at checkpoints, and at recovery."""
        version = self.progress.version
        due = version % self.config.rl.publish_every == 0 or self._checkpoint_due() or force
        if not due or (self.published and self.published.version == version):
            return
        probe = self.updater.probe()
        head = self.progress.head
        numerics, step = self.updater.numerics(), self.progress.step
        self.published = self.publisher.publish(self.updater.params, version, step, head, probe, numerics)
        self.publisher.retire(version, self._checkpoint_steps(version))

    def _checkpoint_due(self) -> bool:
        return self.progress.step % self.config.rl.checkpoint_every == 0 or self._at_end()

    def _checkpoint_steps(self, version: int) -> set[int]:
        every = self.config.rl.checkpoint_every
        return {*range(0, version + 1, every), self.bounds.steps}

    def _checkpoint(self) -> None:
        self.progress.note_cursor(self.tail.cursor(), len(self.tail.workers))
        if self.published is None or self.published.version != self.progress.version:
            raise RunStopped(f"step {self.progress.step} has no published policy to checkpoint with")
        write_checkpoint(
            self.store,
            self.base,
            self.progress,
            self.updater,
            learner=self.publisher.learner,
            parent=self.last_checkpoint,
            initial=self.spec.initial,
            policy=self.published.weights,
            config_digest=self._config_digest,
        )
        self.last_checkpoint = self.progress.step
        self._compact()

    def _checkpoint_missed(self) -> None:
        """Write the checkpoint that is due at the head of the ledger if a learner died on its way to it."""
        if self._checkpoint_due() and self.progress.step > (self.last_checkpoint or 0):
            self.tail.discover()
            self._checkpoint()

    def _tell(self, rows: int, figures: dict[str, float], update: float) -> None:
        busy, waited = self._time.worked()
        self.progress.figures |= {
            "trainer/seconds": busy,
            "trainer/update_seconds": update,
            "trainer/waited_seconds": waited,
        }
        seconds = busy + waited
        self._report(
            "step",
            step=self.progress.step,
            steps=self.bounds.steps,
            version=self.progress.version,
            rows=rows,
            staleness_mean=figures["off_policy/mean"],
            staleness_max=figures["off_policy/max"],
            trainer_idle_ratio=self._time.idle_ratio(),
            tokens_per_second=figures["tokens"] / seconds if seconds else 0.0,
            seconds=seconds,
            **figures,
        )

    # -- the end ----------------------------------------------------------------------------------------------

    def _at_end(self) -> bool:
        return self.progress.step >= self.bounds.steps

    def finished(self) -> bool:
        """Whether the ledger is closed at the configured number of steps."""
        return self.progress.closed and self._at_end()

    def close(self) -> Literal["finished", "stopped"]:
        """Close the window, wait for the workers to leave, end every log, and write the closing record."""
        if self.finished():
            return "finished"
        self.window.move(self.progress, self._published_version(), closed=True, force=True)
        while not closing.workers_left(self.tail, self.watch, self._deliver):
            if self._stop():
                return "stopped"
            self._report("closing", workers=len(self.tail.workers))
            self.successor.look(self.progress.index)
            self._sleep(min(self.config.rollout.poll_seconds, self.config.rollout.lease_seconds / 8))
        closing.end_logs(self.tail, self._deliver)
        self._append(closing.closing_rows(self.progress, self.assembler, self.tail), "close", updates=0)
        self._report("closed", step=self.progress.step, dispositions=self.progress.dispositions)
        return "finished"

    def _idle_cause(self) -> str:
        open_groups = self.progress.open_groups()
        return (
            f"nothing could be trained for {self.config.rl.idle_seconds:g} s at step {self.progress.step}: "
            f"{len(self.tail.workers)} workers registered, {len(open_groups)} groups open (from {self.progress.low}); "
            f"look at the workers' messages, then resume"
        )

    def _empty_cause(self, rows: tuple[LedgerRow, ...]) -> str:
        reasons = [r.reason for r in rows if r.reason] or ["no group could be trained"]
        return f"{self.progress.empty_steps} steps in a row had nothing to train; the last ended because: {reasons[-1]}"


def _places(rows: tuple[LedgerRow, ...]) -> list[tuple[str, int, int]]:
    places = [(r.worker, r.seq, r.row) for r in rows if r.kind == Kind.TRAJECTORY]
    return [p for p in places if None not in p]  # type: ignore[misc]
