"""Replaying a checkpoint as a spawned process: `python -P -m trainer.replay_process --root URL --base … --step N`.

The nearest snapshot before it that has not expired (or version 0) is trained on the recorded batches; the parameters
must be those of the checkpoint, to the bit where the numerics environment is the same. Nothing is written into the
store; `--weights FOLDER` takes the policy's weights, which a checkpoint that has expired no longer has there.
"""

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from schemas import config_text, keys
from schemas.config import Run
from schemas.errors import AuditViolation, LogDamaged, RequestError, RunStopped
from schemas.manifest import CheckpointManifest, PolicyManifest, RLSpec
from storage.documents import read_document
from storage.expired import newest_whole
from storage.ledger import Entry
from storage.objects import ObjectStore
from storage.open import open_store
from storage.process import emit, run_process
from storage.pulse import busy
from trainer.announced import AnnouncedUpdater
from trainer.numerics import bind_cores
from trainer.progress import Bounds, Progress, from_checkpoint
from trainer.record import StepRows
from trainer.recovery import REPLAY_TOLERANCE, replay
from trainer.updater import Updater


@dataclass(frozen=True)
class Replay:
    """What a replay gave."""

    checkpoint: str
    start: int
    """The step of the snapshot that it started from; 0: version 0."""
    records: int
    rows: int
    expected: str
    found: str
    """Digests of the parameters in the checkpoint and after the replay."""
    bitwise: bool
    optimizer_bitwise: bool
    """The optimizer's state is the checkpoint's too."""
    same_numerics: bool
    gap: float | None
    """Largest difference of log-probs from the published policy's probe; None where they need no comparison."""
    tolerance: float
    ledger_head: str


def replay_checkpoint(
    store: ObjectStore,
    spec: RLSpec,
    base: str,
    step: int,
    updater: Updater,
    *,
    from_start: bool = False,
    report: Callable[..., None] = emit,
) -> Replay:
    """Retrain checkpoint `step` and compare. `updater` stands at version 0.

    Raises RequestError if there is no such checkpoint, AuditViolation if other parameters come out.
    """
    manifest = _manifest(store, base, step)
    if manifest is None:
        raise RequestError(f"there is no checkpoint {spec.run}@{step} in {base}: `headrace status` shows the run")
    before = None if from_start else newest_whole(store, base, below=step)
    progress = Progress()
    if before is not None:
        updater.load(before)
        progress = from_checkpoint(before)
    rl, rows, start = Run.model_validate(spec.config).rl, 0, progress.step

    def train(step_rows: StepRows, entry: Entry) -> None:
        nonlocal rows
        if step_rows.batch:
            updater.update(step_rows.batch, step_rows.advantages)
        rows += len(step_rows.batch)
        report("replayed", step=entry.record.metadata.step + 1, steps=manifest.step)

    bounds = Bounds(rl.groups_per_batch, rl.steps_behind, rl.steps)
    try:
        records = replay(store, base, progress, bounds, train, until=manifest.ledger_index)
    except LogDamaged as error:
        raise AuditViolation(str(error)) from error
    if progress.head != manifest.ledger_head:
        raise AuditViolation(
            f"the ledger of {base} does not lead to the head {manifest.ledger_head[:12]} that checkpoint "
            f"{spec.run}@{step} names: run `headrace audit verify`"
        )
    return _compare(store, spec, base, manifest, updater, start, records, rows)


def _compare(
    store: ObjectStore,
    spec: RLSpec,
    base: str,
    manifest: CheckpointManifest,
    updater: Updater,
    start: int,
    records: int,
    rows: int,
) -> Replay:
    found, name = updater.params_digest(), f"{spec.run}@{manifest.step}"
    same, bitwise = manifest.numerics == updater.numerics(), found == manifest.params_sha256
    optimizer = updater.optimizer_digest()
    if same and bitwise and optimizer != manifest.optimizer_sha256:
        raise AuditViolation(
            f"replaying {name} from step {start} gave its parameters, but another optimizer state ({optimizer[:12]}) "
            f"than the checkpoint has ({manifest.optimizer_sha256[:12]}): its snapshot is not what the ledger says"
        )
    if same and not bitwise:
        raise AuditViolation(
            f"replaying {name} from step {start} gave other parameters ({found[:12]}) than the checkpoint has "
            f"({manifest.params_sha256[:12]}) on the same hardware and jax version: the checkpoint is not what the "
            f"ledger says"
        )
    gap = None if bitwise else _gap(store, base, manifest, updater)
    if gap is not None and not gap <= REPLAY_TOLERANCE:
        raise AuditViolation(
            f"replaying {name} from step {start} on another machine or jax version gave log-probs that are {gap:.1e} "
            f"off the published policy's, more than {REPLAY_TOLERANCE:g}: the checkpoint is not what the ledger says"
        )
    return Replay(
        checkpoint=name,
        start=start,
        records=records,
        rows=rows,
        expected=manifest.params_sha256,
        found=found,
        bitwise=bitwise,
        optimizer_bitwise=optimizer == manifest.optimizer_sha256,
        same_numerics=same,
        gap=gap,
        tolerance=REPLAY_TOLERANCE,
        ledger_head=manifest.ledger_head,
    )


def _gap(store: ObjectStore, base: str, manifest: CheckpointManifest, updater: Updater) -> float:
    key = keys.policy_manifest(base, manifest.version)
    policy = read_document(store, PolicyManifest, key)
    if policy is None:
        raise AuditViolation(f"{key} is missing though the checkpoint at step {manifest.step} names its weights")
    return policy.probe.gap(updater.probe())


def _manifest(store: ObjectStore, base: str, step: int) -> CheckpointManifest | None:
    key = keys.checkpoint_manifest(base, step)
    return read_document(store, CheckpointManifest, key)


def main(args: argparse.Namespace) -> None:
    """Replay and tell what came out as one event `replay`."""
    store = open_store(args.root, write=False)
    key = keys.spec(args.base)
    spec = RLSpec.from_bytes(store.get(key).data, key)
    config = config_text.check(spec.config, key)
    bind_cores(config.rl.cores)
    from models.compiling import announce_compilations
    from models.stored import load_weights
    from models.weights import to_files
    from trainer.jax_updater import JaxUpdater

    limit = config.supervision.work_seconds
    with busy("loading weights", limit):
        decoder, params, tokenizer = load_weights(store, spec.initial)
        made = JaxUpdater(store, args.base, config, decoder, params, spec.folder, seed=spec.seed)
        updater = AnnouncedUpdater(made, limit)
    announce_compilations(limit)
    found = replay_checkpoint(store, spec, args.base, args.step, updater, from_start=args.from_start)
    if args.weights:
        if not found.bitwise:
            raise RunStopped(
                f"{found.checkpoint} was replayed within its probe, not to the bit, so its weights are not written: "
                f"replay it with the cores, devices and jax version that its manifest records"
            )
        for name, data in (to_files(decoder, updater.params, config.rl.publish_dtype) | tokenizer.to_files()).items():
            (Path(args.weights) / name).write_bytes(data)
    emit("replay", **asdict(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--step", required=True, type=int)
    parser.add_argument("--from-start", action="store_true")
    parser.add_argument("--weights", default="")
    run_process(main, parser)
