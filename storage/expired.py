"""Reading tombstones: whether a checkpoint's files were removed by `headrace gc`, and what to say about it.

A checkpoint's manifest stays for ever, so its presence does not say that its files are there. Whoever is about to use
the files, or to write down a lasting reference to them, asks here first.
"""

import re
import time

from schemas import keys
from schemas.errors import RequestError
from schemas.expired import Expired
from schemas.manifest import CheckpointManifest, WeightsRef
from storage.documents import read_generation
from storage.objects import ObjectStore

_POLICY = re.compile(r"(runs/[^/]+/rl-[^/]+)/policies/(\d{8})/[^/]+")


def read_tombstone(store: ObjectStore, base: str, step: int) -> tuple[Expired, int] | None:
    """The tombstone as it stands, also a void one, and its generation."""
    key = keys.checkpoint_expired(base, step)
    return read_generation(store, Expired, key)


def read_expired(store: ObjectStore, base: str, step: int) -> Expired | None:
    """The tombstone of a checkpoint whose files are gone or about to go."""
    found = read_tombstone(store, base, step)
    return found[0] if found and found[0].state != "kept" else None


def expired_checkpoints(store: ObjectStore, base: str) -> dict[int, Expired]:
    """Step → tombstone, of every expired checkpoint of an RL stage."""
    found = {}
    for key in store.list(f"{keys.checkpoints(base)}/"):
        if key.endswith("/expired.json"):
            tombstone = Expired.from_bytes(store.get(key).data, key)
            if tombstone.state != "kept":
                found[tombstone.step] = tombstone
    return found


def newest_whole(store: ObjectStore, base: str, below: int | None = None) -> CheckpointManifest | None:
    """The newest checkpoint that has its files (of those at steps below `below`): where replay can start."""
    end = None if below is None else keys.checkpoint_manifest(base, below)
    found = [k for k in store.list(f"{keys.checkpoints(base)}/") if k.endswith("/manifest.json")]
    for key in reversed(found):
        if end is not None and key >= end:
            continue
        manifest = CheckpointManifest.from_bytes(store.get(key).data, key)
        if read_expired(store, base, manifest.step) is None:
            return manifest
    return None


def sentence(store: ObjectStore, expired: Expired) -> str:
    """What it was, when and why it went, and how its parameters can be had again."""
    start = newest_whole(store, keys.rl(expired.run, expired.rl), below=expired.step)
    name = f"{expired.run}@{expired.step}"
    return (
        f"{name}'s snapshot and weights expired on {time.strftime('%Y-%m-%d', time.gmtime(expired.time))} "
        f"({expired.rule}); its trajectories, ledger and manifests are kept: `headrace audit replay {name} --weights "
        f"FOLDER` retrains it from {f'{expired.run}@{start.step}' if start else 'version 0'}"
    )


def check_weights(store: ObjectStore, weights: WeightsRef) -> None:
    """RequestError, with the whole story, if these weights are those of an expired checkpoint."""
    match = _POLICY.fullmatch(weights.prefix)
    found = read_expired(store, match[1], int(match[2])) if match else None
    if found is not None:
        raise RequestError(sentence(store, found))
