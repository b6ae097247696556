"""How far a run has come, as a pure function of its ledger. Checkpoints store it; replay rebuilds it.

`admitted` holds, for every open group below the window's limit, the version at which the limit first passed it: a
group's samples are at most that much older than the step that trains them (rules 1, 2 and 13 of `docs/design.md`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from schemas.ledger import Kind, Record
from schemas.manifest import CheckpointManifest

Place = tuple[str, int, int]
"""Where a row stands: worker, shard number, row."""


@dataclass(frozen=True)
class Bounds:
    """The constants of a run: batch, staleness bound, length."""

    groups_per_batch: int
    max_staleness: int
    """In steps: `RL.steps_behind`."""
    steps: int

    def window(self, step: int) -> int:
        """Groups that may be open at this step: no more than can still be trained, so that a run leaves no surplus."""
        return max(0, min(self.max_staleness + 1, self.steps - step)) * self.groups_per_batch


@dataclass
class Progress:
    """Everything the ledger says so far. Mutated only by `apply`, `note`, `note_cursor` and `admit`."""

    step: int = 0
    """Step records applied, which is the policy version, however many updates a step makes."""
    index: int = 0
    """The next ledger index."""
    head: str = ""
    """Digest of the last record."""
    low: int = 0
    """The lowest group that has not ended."""
    limit: int = 0
    """Exclusive: groups below it may be claimed."""
    ended_count: int = 0
    ended: set[int] = field(default_factory=set)
    """Ended groups at or above `low`."""
    admitted: dict[int, int] = field(default_factory=dict)
    recorded: set[Place] = field(default_factory=set)
    """Rows with a disposition, at or above the cursor."""
    unreadable: set[tuple[str, int]] = field(default_factory=set)
    cursor: dict[str, int] = field(default_factory=dict)
    """Per worker the lowest shard number that may hold a row without a disposition."""
    workers: int = 0
    """Workers known when the cursor was noted."""
    closed: bool = False
    empty_steps: int = 0
    """Steps in a row without an update."""
    dispositions: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    """Means over the updates so far, weighted by their rows, and the rows that they were taken over (`rows`)."""
    figures: dict[str, float] = field(default_factory=dict)
    """What the last step measured: the next record has it."""

    @property
    def version(self) -> int:
        """The number of steps applied: one that trains nothing raises it too."""
        return self.step

    def admit(self, bounds: Bounds) -> None:
        """Raise the limit as far as the window allows; it never falls."""
        limit = max(self.limit, self.ended_count + bounds.window(self.step))
        self.admitted.update(dict.fromkeys(range(self.limit, limit), self.step))
        self.limit = limit

    def apply(self, record: Record, digest: str, bounds: Bounds) -> None:
        """Take in the next record of the ledger."""
        for row in record.rows:
            if row.kind == Kind.TRAJECTORY and row.worker is not None and row.seq is not None and row.row is not None:
                self.recorded.add((row.worker, row.seq, row.row))
                self.dispositions[str(row.disposition)] = self.dispositions.get(str(row.disposition), 0) + 1
            elif row.kind == Kind.SHARD and row.worker is not None and row.seq is not None:
                self.unreadable.add((row.worker, row.seq))
        self._end(record.ended_groups())
        self.index, self.head = self.index + 1, digest
        self.closed = record.metadata.kind == "close"
        if not self.closed:
            self.step += 1
            self.empty_steps = 0 if record.metadata.updates else self.empty_steps + 1
        self.admit(bounds)

    def note(self, figures: Mapping[str, float], rows: int) -> None:
        """Take the figures of an update on so many rows into the running means: the same on replay, to the bit."""
        total = self.metrics.get("rows", 0.0) + rows
        for name, value in figures.items():
            mean = self.metrics.get(name, 0.0)
            self.metrics[name] = mean + (value - mean) * (rows / total)
        self.metrics["rows"] = total

    def _end(self, groups: list[int]) -> None:
        self.ended.update(groups)
        self.ended_count += len(groups)
        for group in groups:
            self.admitted.pop(group, None)
        while self.low in self.ended:
            self.ended.discard(self.low)
            self.low += 1

    def is_ended(self, group: int) -> bool:
        return group < self.low or group in self.ended

    def open_groups(self) -> list[int]:
        """Groups that may be claimed or are being rolled out, lowest first."""
        return [g for g in range(self.low, self.limit) if g not in self.ended]

    def note_cursor(self, cursor: dict[str, int], workers: int) -> None:
        """Move the cursor and forget recorded rows below it: recovery rereads from there."""
        self.cursor, self.workers = dict(cursor), workers
        self.recorded = {p for p in self.recorded if p[1] >= cursor.get(p[0], 0)}
        self.unreadable = {p for p in self.unreadable if p[1] >= cursor.get(p[0], 0)}


def from_checkpoint(manifest: CheckpointManifest) -> Progress:
    """The progress that a checkpoint stored. Recorded rows above its cursor come from the ledger: see `recovery`."""
    return Progress(
        step=manifest.step,
        index=manifest.ledger_index,
        head=manifest.ledger_head,
        low=manifest.low,
        limit=manifest.limit,
        ended_count=manifest.low + len(manifest.ended),
        ended=set(manifest.ended),
        admitted=dict(manifest.admitted),
        recorded={(w, s, r) for w, s, r in manifest.recorded},
        unreadable={(w, s) for w, s in manifest.unreadable},
        cursor=dict(manifest.cursor),
        workers=manifest.workers,
        empty_steps=manifest.empty_steps,
        dispositions=dict(manifest.dispositions),
        metrics=dict(manifest.metrics),
        figures=dict(manifest.figures),
    )
