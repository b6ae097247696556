"""What a checkpoint is made of: every trajectory that trained it, back through parent runs and warm-ups to data files.

The trajectories come from walking the hash chain backwards from the head that the checkpoint's manifest names.
"""

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from schemas import keys
from schemas.ledger import LedgerRow
from schemas.manifest import Parent, StageManifest, WeightsRef
from storage.audit_chain import Link, read_chain
from storage.audit_runs import find_checkpoint, read_spec
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
    trained: tuple[Trained, ...]


@dataclass(frozen=True)
class WarmUp:
    """A warm-up stage in a lineage."""

    stage: str
    """Its folder in the store."""
    weights_sha256: str
    inputs: tuple[Parent, ...]


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
        """The data files: tasks of each run, demonstrations of each warm-up."""
        files = [s.tasks for s in self.segments] + [p for w in self.warm_ups for p in w.inputs if p.kind == "data"]
        return list(dict.fromkeys(files))

    def to_json(self) -> dict[str, Any]:
        """What `audit checkpoint --json` prints; `trajectories` are those of all runs, oldest run first, by step."""
        return {
            "run": self.run,
            "checkpoint": f"{self.run}@{self.step}",
            "step": self.step,
            "weights_sha256": self.weights_sha256,
            "ledger_head": self.segments[0].ledger_head,
            "trained": sum(len(s.trained) for s in self.segments),
            "trajectories": [
                {"run": s.run, "rl": s.rl, **asdict(t)} for s in reversed(self.segments) for t in s.trained
            ],
            "runs": [_segment_json(s) for s in self.segments],
            "warm_ups": [
                {"stage": w.stage, "weights_sha256": w.weights_sha256, "inputs": [p.model_dump() for p in w.inputs]}
                for w in self.warm_ups
            ],
            "data": [p.model_dump() for p in self.data()],
            "outside": [p.model_dump() for p in self.outside],
        }


def _segment_json(segment: Segment) -> dict[str, Any]:
    return {
        "run": segment.run,
        "rl": segment.rl,
        "checkpoint": f"{segment.run}@{segment.step}",
        "steps": segment.step,
        "trained": len(segment.trained),
        "weights_sha256": segment.weights_sha256,
        "ledger_head": segment.ledger_head,
        "initial": segment.initial.model_dump(),
        "tasks": segment.tasks.model_dump(),
    }


def checkpoint(store: ObjectStore, run: str, step: int | None = None) -> Lineage:
    """Exactly the trajectories that trained RUN@STEP (default: the newest), by step, and what its ancestors are.

    Raises RequestError if there is no such checkpoint, AuditViolation if the ledger does not lead back from it.
    """
    segment = _segment(store, run, step)
    lineage = Lineage(run, segment.step, segment.weights_sha256, [segment])
    _follow(store, lineage, segment.initial)
    return lineage


def _segment(store: ObjectStore, run: str, step: int | None, weights_sha256: str = "") -> Segment:
    base, manifest = find_checkpoint(store, run, step, weights_sha256)
    spec = read_spec(store, base)
    links = read_chain(store, base, spec).back_from(manifest.ledger_head)
    return Segment(
        run=run,
        rl=spec.key,
        step=manifest.step,
        ledger_head=manifest.ledger_head,
        weights_sha256=manifest.policy.sha256,
        tasks=Parent(kind="data", ref=spec.tasks, sha256=spec.tasks_sha256),
        initial=spec.initial,
        trained=tuple(_trained(link, row) for link in links for row in link.record.trained()),
    )


def _trained(link: Link, row: LedgerRow) -> Trained:
    return Trained(
        step=link.record.metadata.step,
        version=link.record.metadata.version,
        position=row.position or 0,
        trajectory=row.trajectory or "",
        group=row.group or 0,
        sample=row.sample or 0,
        attempt=row.attempt or 0,
        task_id=row.task_id or "",
        worker=row.worker or "",
        seq=row.seq or 0,
        row=row.row or 0,
        row_digest=row.row_digest or "",
        staleness=row.staleness or 0,
        advantage=row.advantage or 0.0,
    )


def _follow(store: ObjectStore, lineage: Lineage, weights: WeightsRef) -> None:
    """Go on from the weights that an ancestor started from."""
    if match := _CHECKPOINT.fullmatch(weights.origin):
        if find(store, keys.run_manifest(match[1])) is None:
            lineage.outside.append(Parent(kind="checkpoint", ref=weights.origin, sha256=weights.sha256))
            return
        segment = _segment(store, match[1], int(match[2]), weights.sha256)
        lineage.segments.append(segment)
        _follow(store, lineage, segment.initial)
    elif match := _STAGE.match(weights.origin):
        _follow_stage(store, lineage, match[0], weights.sha256)
    else:
        ref = weights.origin or weights.prefix
        lineage.outside.append(Parent(kind="weights", ref=ref, sha256=weights.sha256))


def _follow_stage(store: ObjectStore, lineage: Lineage, stage: str, sha256: str) -> None:
    key = f"{stage}/manifest.json"
    stored = find(store, key)
    if stored is None:
        lineage.outside.append(Parent(kind="stage", ref=stage, sha256=sha256))
        return
    manifest = StageManifest.from_bytes(stored.data, key)
    digest = manifest.weights.sha256 if manifest.weights else ""
    lineage.warm_ups.append(WarmUp(stage, digest, manifest.inputs))
    for parent in manifest.inputs:
        if parent.kind not in ("data", "code"):
            _follow(store, lineage, WeightsRef(prefix=parent.ref, sha256=parent.sha256, origin=parent.ref))
