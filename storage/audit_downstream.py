"""What descends from a training step or from weights: checkpoints, policies and warm-ups, on through child runs.

Weights are followed by their digest: an RL stage or a warm-up that starts from tainted weights is tainted as a whole.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from schemas import keys
from schemas.manifest import PolicyManifest, StageManifest
from storage.audit_runs import checkpoints, folders, promotions, read_spec
from storage.documents import read_document
from storage.expired import expired_checkpoints
from storage.many import many
from storage.objects import ObjectStore, find


@dataclass(frozen=True)
class Artifact:
    """Weights that something is in."""

    kind: str
    """`checkpoint`, `policy` or `warm-up`"""
    ref: str
    """`RUN@STEP`, the policy's or the stage's key"""
    run: str
    rl: str
    step: int
    weights_sha256: str
    promoted: tuple[str, ...]
    """Channels (`name/channel`) whose history has these weights."""
    expired: bool = False
    """Its files were removed by `headrace gc`; its manifest says what it was."""


def downstream(
    store: ObjectStore, steps: Mapping[str, int], weights: frozenset[str] = frozenset(), *, policies: bool = True
) -> list[Artifact]:
    """What descends from `steps` (RL stage → the first policy version concerned) and from weights with these digests.

    The stages given come first, then their descendants by generation. `policies`: list them beside checkpoints.
    """
    reached, tainted = dict(steps), set(weights)
    stages, warm_ups = rl_stages(store), warm_up_stages(store)
    reached_warm_ups: list[StageManifest] = []
    while True:
        before = len(tainted), dict(reached)
        for base, version in list(reached.items()):
            tainted |= {c.policy.sha256 for c in checkpoints(store, base) if c.version >= version}
        for manifest in warm_ups:
            if manifest.weights and manifest not in reached_warm_ups and _touched(manifest, tainted):
                reached_warm_ups.append(manifest)
                tainted.add(manifest.weights.sha256)
        for base, initial in stages.items():
            if initial in tainted:
                reached[base] = 0
        if before == (len(tainted), reached):
            break
    promoted = promotions(store)
    found = [_warm_up(m, promoted) for m in reached_warm_ups]
    for base, version in reached.items():
        found += _artifacts(store, base, version, promoted, policies=policies)
    return found


def _touched(manifest: StageManifest, tainted: set[str]) -> bool:
    made = manifest.weights.sha256 if manifest.weights else ""
    return made in tainted or any(p.sha256 in tainted for p in manifest.inputs if p.kind != "code")


def _warm_up(manifest: StageManifest, promoted: Mapping[str, list[str]]) -> Artifact:
    sha256 = manifest.weights.sha256 if manifest.weights else ""
    ref = keys.stage(manifest.stage, manifest.key)
    return Artifact("warm-up", ref, "", "", 0, sha256, tuple(promoted.get(sha256, ())))


def _artifacts(
    store: ObjectStore, base: str, version: int, promoted: Mapping[str, list[str]], *, policies: bool
) -> Iterator[Artifact]:
    run, rl = base.removeprefix("runs/").split("/rl-", 1)
    expired = expired_checkpoints(store, base)
    for manifest in checkpoints(store, base):
        if manifest.version >= version:
            sha256, step = manifest.policy.sha256, manifest.step
            at = _at(promoted, sha256)
            yield Artifact("checkpoint", f"{run}@{step}", run, rl, step, sha256, at, step in expired)
    for key in store.list(f"{base}/policies/") if policies else ():
        match = re.fullmatch(r".*/policies/(\d{8})/manifest\.json", key)
        if match and int(match[1]) >= version:
            policy = PolicyManifest.from_bytes(store.get(key).data, key)
            sha256 = policy.weights.sha256
            ref = key.removesuffix("/manifest.json")
            gone = policy.step in expired
            yield Artifact("policy", ref, run, rl, policy.step, sha256, _at(promoted, sha256), gone)


def made_here(store: ObjectStore, sha256: str) -> str:
    """What made the weights with this digest, `RUN@STEP` or a warm-up's folder; empty where this store did not.

    Reads the manifest of every checkpoint and warm-up in the store.
    """
    for manifest in warm_up_stages(store):
        if manifest.weights and manifest.weights.sha256 == sha256:
            return keys.stage(manifest.stage, manifest.key)
    for base, found in zip(bases := list(rl_stages(store)), many(lambda b: checkpoints(store, b), bases), strict=True):
        if steps := [c.step for c in found if c.policy.sha256 == sha256]:
            return f"{base.removeprefix('runs/').partition('/')[0]}@{steps[0]}"
    return ""


def _at(promoted: Mapping[str, list[str]], sha256: str) -> tuple[str, ...]:
    return tuple(promoted.get(sha256, ()))


def rl_stages(store: ObjectStore) -> dict[str, str]:
    """Every RL stage in the store → the digest of the weights that it started from."""
    bases = [
        f"runs/{run}/{name}"
        for run in folders(store, "runs/")
        for name in folders(store, f"runs/{run}/")
        if name.startswith("rl-")
    ]
    return {b: read_spec(store, b).initial.sha256 for b in bases if find(store, keys.spec(b)) is not None}


def warm_up_stages(store: ObjectStore) -> list[StageManifest]:
    """Every finished warm-up in the store."""
    wanted = [f"stages/{name}/manifest.json" for name in folders(store, "stages/")]
    return [m for key in wanted if (m := read_document(store, StageManifest, key)) is not None]
