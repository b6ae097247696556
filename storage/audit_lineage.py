"""What a checkpoint is made of: every trajectory that trained it, back through parent runs and warm-ups to data files.

The trajectories are those of the records up to the ledger head that the checkpoint's manifest names: from the catalog
where the ledger bears it out, from the ledger itself behind it.
"""

import re
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from schemas import keys
from schemas.ledger import Disposition, Kind
from schemas.manifest import Parent, StageManifest, WeightsRef
from storage.audit_runs import find_checkpoint, read_spec
from storage.audit_taken import Taken, taken_by
from storage.catalog import open_catalog
from storage.documents import read_document
from storage.expired import read_expired, sentence
from storage.objects import ObjectStore, find

_CHECKPOINT = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)@(\d+)")
_STAGE = re.compile(r"stages/[^/]+")


@dataclass(frozen=True)
class Trained:
    """A trajectory in the batch of one step."""

    step: int
    version: int
    position: int
    trajectory: str
    group: int
    sample: int
    attempt: int
    task_id: str
    worker: str
    seq: int
    row: int
    row_digest: str
    staleness: int
    advantage: float


_COLUMNS = [f.name for f in fields(Trained) if f.name != "version"]


@dataclass(frozen=True)
class Segment:
    """One run's part of a lineage: its RL stage up to the checkpoint that the next one started from."""

    run: str
    rl: str
    step: int
    ledger_head: str
    weights_sha256: str
    tasks: Parent
    initial: WeightsRef
    rows: pa.Table
    """What it trained, a column for each field of `Trained`, by (step, position)."""
    from_catalog: int
    """Ledger records that the catalog answered for; the others were read."""
    refused: str = ""
    """Why the catalog was not used; empty where it was or where there is none."""
    expired: str = ""
    """What became of the checkpoint's files, where they are gone."""

    @property
    def trained(self) -> tuple[Trained, ...]:
        return tuple(Trained(**row) for row in self.rows.to_pylist())


@dataclass(frozen=True)
class WarmUp:
    """A warm-up stage in a lineage."""

    stage: str
    """Its folder in the store."""
    weights_sha256: str
    inputs: tuple[Parent, ...]
    taken: Taken | None = None
    """What it took from a run's log, where it did not learn from a file."""

    @property
    def source(self) -> str:
        """` on` and what it took, in words; empty where it learned from a file."""
        return f" on {self.taken.sentence}" if self.taken else ""


@dataclass
class Lineage:
    """A checkpoint's ancestry, nearest first."""

    run: str
    step: int
    weights_sha256: str
    segments: list[Segment] = field(default_factory=list)
    warm_ups: list[WarmUp] = field(default_factory=list)
    outside: list[Parent] = field(default_factory=list)
    """Where the walk ends: weights and checkpoints that this store does not hold."""

    def data(self) -> list[Parent]:
        """The data files: tasks of each run and of trajectories that a warm-up took, demonstrations of each warm-up."""
        files = [s.tasks for s in self.segments] + [p for w in self.warm_ups for p in w.inputs if p.kind == "data"]
        files += [w.taken.tasks for w in self.warm_ups if w.taken]
        return list(dict.fromkeys(files))

    @property
    def notes(self) -> list[str]:
        """What a person should know of how the answer was made."""
        return [s.refused for s in self.segments if s.refused] + [s.expired for s in self.segments if s.expired]

    def table(self) -> pa.Table:
        """The trajectories of all runs, oldest run first, by (step, position)."""
        return pa.concat_tables([_named(s) for s in reversed(self.segments)])

    def to_json(self) -> dict[str, Any]:
        """What `audit checkpoint --json` prints; `trajectories` are those of `table`."""
        return {
            "run": self.run,
            "checkpoint": f"{self.run}@{self.step}",
            "step": self.step,
            "weights_sha256": self.weights_sha256,
            "ledger_head": self.segments[0].ledger_head,
            "trained": sum(s.rows.num_rows for s in self.segments),
            "trajectories": self.table().to_pylist(),
            "runs": [_segment_json(s) for s in self.segments],
            "warm_ups": [
                {
                    "stage": w.stage,
                    "weights_sha256": w.weights_sha256,
                    "inputs": [p.model_dump() for p in w.inputs],
                    "taken": w.taken.to_json() if w.taken else None,
                }
                for w in self.warm_ups
            ],
            "data": [p.model_dump() for p in self.data()],
            "outside": [p.model_dump() for p in self.outside],
            "notes": self.notes,
        }


def _named(segment: Segment) -> pa.Table:
    """The segment's rows with its run and stage before them."""
    count = segment.rows.num_rows
    names = [pa.array([text] * count, pa.string()).dictionary_encode() for text in (segment.run, segment.rl)]
    return segment.rows.add_column(0, "rl", names[1].cast(pa.string())).add_column(0, "run", names[0].cast(pa.string()))


def _segment_json(segment: Segment) -> dict[str, Any]:
    return {
        "run": segment.run,
        "rl": segment.rl,
        "checkpoint": f"{segment.run}@{segment.step}",
        "steps": segment.step,
        "trained": segment.rows.num_rows,
        "weights_sha256": segment.weights_sha256,
        "ledger_head": segment.ledger_head,
        "expired": bool(segment.expired),
        "from_catalog": segment.from_catalog,
        "initial": segment.initial.model_dump(),
        "tasks": segment.tasks.model_dump(),
    }


def checkpoint(
    store: ObjectStore, run: str, step: int | None = None, *, weights_sha256: str = "", ledger_only: bool = False
) -> Lineage:
    """Exactly the trajectories that trained RUN@STEP (default: the newest), by step, and what its ancestors are.

    `weights_sha256` picks among the run's RL stages. `ledger_only`: read every ledger record, not the catalog. Raises
    RequestError if there is no such checkpoint, AuditViolation if the ledger does not lead back from it.
    """
    segment = _segment(store, run, step, weights_sha256, ledger_only=ledger_only)
    lineage = Lineage(run, segment.step, segment.weights_sha256, [segment])
    _follow(store, lineage, segment.initial, ledger_only=ledger_only)
    return lineage


def _segment(
    store: ObjectStore, run: str, step: int | None, weights_sha256: str = "", *, ledger_only: bool = False
) -> Segment:
    base, manifest = find_checkpoint(store, run, step, weights_sha256)
    spec = read_spec(store, base)
    catalog = open_catalog(store, base, end=manifest.ledger_index, ledger_only=ledger_only)
    catalog.until(manifest.ledger_index, manifest.ledger_head)
    trained = (pc.field("kind") == Kind.TRAJECTORY) & (pc.field("disposition") == Disposition.TRAINED)
    rows = catalog.rows(_COLUMNS, trained & (pc.field("index") < manifest.ledger_index))
    rows = rows.add_column(1, "version", rows["step"])  # a step's version is its number
    tombstone = read_expired(store, base, manifest.step)
    return Segment(
        run=run,
        rl=spec.key,
        step=manifest.step,
        ledger_head=manifest.ledger_head,
        weights_sha256=manifest.policy.sha256,
        tasks=Parent(kind="data", ref=spec.tasks, sha256=spec.tasks_sha256),
        initial=spec.initial,
        rows=rows.sort_by([("step", "ascending"), ("position", "ascending")]),
        from_catalog=min(catalog.from_parts, manifest.ledger_index),
        refused=catalog.refused,
        expired=sentence(store, tombstone) if tombstone else "",
    )


def _follow(store: ObjectStore, lineage: Lineage, weights: WeightsRef, *, ledger_only: bool) -> None:
    """Go on from the weights that an ancestor started from."""
    if match := _CHECKPOINT.fullmatch(weights.origin):
        if find(store, keys.run_manifest(match[1])) is None:
            lineage.outside.append(Parent(kind="checkpoint", ref=weights.origin, sha256=weights.sha256))
            return
        segment = _segment(store, match[1], int(match[2]), weights.sha256, ledger_only=ledger_only)
        lineage.segments.append(segment)
        _follow(store, lineage, segment.initial, ledger_only=ledger_only)
    elif match := _STAGE.match(weights.origin):
        _follow_stage(store, lineage, match[0], weights.sha256, ledger_only=ledger_only)
    else:
        ref = weights.origin or weights.prefix
        lineage.outside.append(Parent(kind="weights", ref=ref, sha256=weights.sha256))


def _follow_stage(store: ObjectStore, lineage: Lineage, stage: str, sha256: str, *, ledger_only: bool) -> None:
    key = f"{stage}/manifest.json"
    manifest = read_document(store, StageManifest, key)
    if manifest is None:
        lineage.outside.append(Parent(kind="stage", ref=stage, sha256=sha256))
        return
    digest = manifest.weights.sha256 if manifest.weights else ""
    lineage.warm_ups.append(WarmUp(stage, digest, manifest.inputs, taken_by(store, manifest)))
    for parent in manifest.inputs:
        if parent.kind not in ("data", "log", "run", "code"):
            weights = WeightsRef(prefix=parent.ref, sha256=parent.sha256, origin=parent.ref)
            _follow(store, lineage, weights, ledger_only=ledger_only)
