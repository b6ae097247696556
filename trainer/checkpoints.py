"""Checkpoints: a snapshot that replay can start from, committed by a manifest that is created last."""

import json
from typing import TYPE_CHECKING

from schemas import keys
from schemas.manifest import CheckpointManifest, WeightsRef
from schemas.version import code_version
from storage.objects import ObjectExists, ObjectStore

if TYPE_CHECKING:
    from trainer.progress import Progress
    from trainer.updater import Updater


def write_checkpoint(
    store: ObjectStore,
    base: str,
    progress: "Progress",
    updater: "Updater",
    *,
    learner: str,
    parent: int | None,
    initial: WeightsRef,
    policy: WeightsRef,
    config_digest: str,
) -> None:
    """Snapshot the updater and the progress at the current step. A checkpoint that is there already stands."""
    key = keys.checkpoint_manifest(base, progress.step)
    if store.head(key) is not None:
        return
    prefix, files, optimizer = updater.save(progress.step, learner)
    manifest = CheckpointManifest(
        step=progress.step,
        version=progress.version,
        learner=learner,
        prefix=prefix,
        files=files,
        params_sha256=updater.params_digest(),
        optimizer_sha256=optimizer,
        prng=json.dumps({"counter": progress.step}),
        cursor=progress.cursor,
        workers=progress.workers,
        low=progress.low,
        limit=progress.limit,
        ended=tuple(sorted(progress.ended)),
        admitted=progress.admitted,
        recorded=tuple(sorted(progress.recorded)),
        unreadable=tuple(sorted(progress.unreadable)),
        empty_steps=progress.empty_steps,
        dispositions=progress.dispositions,
        metrics=progress.metrics,
        figures=progress.figures,
        ledger_index=progress.index,
        ledger_head=progress.head,
        parent=parent,
        initial=initial,
        policy=policy,
        config_digest=config_digest,
        code=code_version(),
        numerics=updater.numerics(),
    )
    try:
        store.create(key, manifest.to_bytes())
    except ObjectExists:
        return
