"""Tombstones made by hand, for readers of them."""

from schemas import keys
from schemas.expired import Expired
from schemas.manifest import CheckpointManifest
from storage.objects import ObjectStore

DAY = 1_790_000_000.0
"""2026-09-21."""


def expire(store: ObjectStore, base: str, step: int, state: str = "expired", *, files: bool = True) -> Expired:
    """Let a checkpoint expire as `headrace gc` would; `files`: remove what it had."""
    key = keys.checkpoint_manifest(base, step)
    manifest = CheckpointManifest.from_bytes(store.get(key).data, key)
    run, rl = base.removeprefix("runs/").split("/rl-")
    tombstone = Expired.model_validate(
        {
            "state": state, "run": run, "rl": rl, "step": step, "params_sha256": manifest.params_sha256,
            "optimizer_sha256": manifest.optimizer_sha256, "policy": manifest.policy,
            "ledger_head": manifest.ledger_head, "rule": "keep_last = 1", "files": 2, "bytes": 10, "time": DAY,
        }
    )  # fmt: skip
    store.put(keys.checkpoint_expired(base, step), tombstone.to_bytes())
    for prefix in (manifest.prefix, manifest.policy.prefix) if files else ():
        for name in store.list(f"{prefix}/"):
            store.delete(name)
    return tombstone
