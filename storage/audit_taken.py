"""Warm-ups that learned from a run's own log: which trajectories they took, read back from the stored selection."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from schemas import keys
from schemas.digest import sha256
from schemas.errors import AuditViolation, LogDamaged, RequestError
from schemas.manifest import Parent, RunManifest, StageManifest
from schemas.selection import Selected, Selection
from storage.audit_downstream import warm_up_stages
from storage.catalog import open_catalog
from storage.documents import read_document
from storage.objects import ObjectStore, find
from storage.selected import read_selected


@dataclass(frozen=True)
class Taken:
    """What a warm-up took."""

    stage: str
    """The warm-up's folder."""
    weights_sha256: str
    document: Parent
    selection: Selection

    @property
    def base(self) -> str:
        """The folder of the RL stage that it took from."""
        return keys.rl(self.selection.run, self.selection.rl)

    @property
    def tasks(self) -> Parent:
        """The tasks that were played."""
        return Parent(kind="data", ref=self.selection.tasks, sha256=self.selection.tasks_sha256)

    @property
    def sentence(self) -> str:
        """How much, of what, in words."""
        told = self.selection
        count = f"{len(told.chosen)} {'pairs' if told.rejected else 'trajectories'}"
        return (
            f"{count} of run {told.run}, steps {told.first_step} to {told.end_step} (ledger head "
            f"{told.ledger_head[:12]})"
        )

    def to_json(self) -> dict[str, Any]:
        """What `audit checkpoint --json` prints of it."""
        told = self.selection
        return {
            "run": told.run,
            "rl": told.rl,
            "first_step": told.first_step,
            "end_step": told.end_step,
            "ledger_head": told.ledger_head,
            "selection": self.document.model_dump(),
            "chosen": [_short(one) for one in told.chosen],
            "rejected": [_short(one) for one in told.rejected],
        }


def _short(one: Selected) -> dict[str, Any]:
    return {name: getattr(one, name) for name in ("trajectory", "task_id", "step", "reward", "row_digest")}


def taken_by(store: ObjectStore, manifest: StageManifest) -> Taken | None:
    """What a warm-up took from a log; None where it learned from a file. AuditViolation where the selection that its
    manifest names is gone or changed."""
    document = next((p for p in manifest.inputs if p.kind == "log"), None)
    if document is None:
        return None
    stored = find(store, document.ref)
    stage = keys.stage(manifest.stage, manifest.key)
    if stored is None or sha256(stored.data) != document.sha256:
        what = "is gone" if stored is None else "was changed"
        raise AuditViolation(f"{document.ref}, which says what {stage} was trained on, {what}")
    weights = manifest.weights.sha256 if manifest.weights else ""
    return Taken(stage, weights, document, Selection.from_bytes(stored.data, document.ref))


def taken_violations(store: ObjectStore, run: str) -> Iterator[str]:
    """What contradicts the selections of a run's warm-ups: a document, a trajectory or a ledger head that is gone or
    changed; and manifests of its stages that can't be read."""
    record = read_document(store, RunManifest, keys.run_manifest(run))
    for name, key in (record.stages if record else {}).items():
        try:
            manifest = read_document(store, StageManifest, keys.stage_manifest(name, key))
        except RequestError as error:
            yield str(error)
            continue
        try:
            taken = taken_by(store, manifest) if manifest else None
            if taken is not None:
                read_selected(store, taken.base, taken.selection.everything)
                _check_head(store, taken)
        except (AuditViolation, LogDamaged) as error:
            yield f"{keys.stage(name, key)}: {error}"


def _check_head(store: ObjectStore, taken: Taken) -> None:
    head = taken.selection.ledger_head
    if all(note.digest != head for note in open_catalog(store, taken.base).records):
        raise AuditViolation(f"the ledger of {taken.base} has no record {head[:12]}, up to which it was taken from")


def warm_ups_that_took(store: ObjectStore, wanted: Callable[[str, Selected], bool]) -> Iterator[Taken]:
    """Finished warm-ups that took a trajectory of which `wanted` (RL stage, what was taken) says so."""
    for manifest in warm_up_stages(store):
        taken = taken_by(store, manifest)
        if taken and any(wanted(taken.base, one) for one in taken.selection.everything):
            yield taken
