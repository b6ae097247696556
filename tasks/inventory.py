"""What an RL stage has in its checkpoints and policies: whose files they are, how large, how old."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from schemas import keys
from schemas.expired import Expired
from schemas.manifest import CheckpointManifest, PolicyManifest
from storage.many import many
from storage.objects import ObjectStore, Stat

_PARTS = re.compile(r"(checkpoints|policies)/(\d{8})/(?:(manifest\.json|expired\.json)|([^/]+)/.+)")


@dataclass(frozen=True)
class Files:
    """The files below one learner's folder."""

    prefix: str
    keys: tuple[str, ...]
    bytes: int
    modified: float
    """When the newest was written."""


NOTHING = Files("", (), 0, 0.0)


@dataclass(frozen=True)
class Inventory:
    """The checkpoints and policies of one RL stage."""

    base: str
    checkpoints: Mapping[int, CheckpointManifest]
    committed: Mapping[int, float]
    """Step → when the manifest was written."""
    tombstones: Mapping[int, Expired]
    policies: Mapping[int, PolicyManifest]
    files: Mapping[tuple[str, int, str], Files]
    """(`checkpoints` or `policies`, step or version, learner) → files."""

    def snapshot(self, step: int) -> Files:
        """The files that a checkpoint's manifest names."""
        return self.files.get(("checkpoints", step, self.checkpoints[step].learner), NOTHING)

    def policy(self, version: int) -> Files:
        """The weights that a policy's manifest names."""
        found = self.policies.get(version)
        return self.files.get(("policies", version, found.learner), NOTHING) if found else NOTHING


def learner_folder(key: str) -> str:
    """`runs/<run>/rl-<key>/<kind>/<number>/<learner>` of a file below it."""
    return "/".join(key.split("/")[:6])


def take_inventory(store: ObjectStore, base: str) -> Inventory:
    """Two listings, every manifest, and size and time of every file. RequestError where a manifest is damaged."""
    found = [k for kind in ("checkpoints", "policies") for k in store.list(f"{base}/{kind}/")]
    parsed = [(k, m) for k in found if (m := _PARTS.fullmatch(k.removeprefix(f"{base}/"))) is not None]
    documents = {(m[1], int(m[2]), m[3]): k for k, m in parsed if m[3]}
    data = dict(zip(documents, many(lambda k: store.get(k).data, documents.values()), strict=True))
    checkpoints = {
        step: CheckpointManifest.from_bytes(raw, documents[kind, step, name])
        for (kind, step, name), raw in data.items()
        if (kind, name) == ("checkpoints", "manifest.json")
    }
    committed = many(lambda step: store.head(keys.checkpoint_manifest(base, step)), checkpoints)
    return Inventory(
        base=base,
        checkpoints=checkpoints,
        committed={step: stat.modified for step, stat in zip(checkpoints, committed, strict=True) if stat},
        tombstones={
            step: Expired.from_bytes(raw, documents[kind, step, name])
            for (kind, step, name), raw in data.items()
            if name == "expired.json"
        },
        policies={
            version: PolicyManifest.from_bytes(raw, documents[kind, version, name])
            for (kind, version, name), raw in data.items()
            if (kind, name) == ("policies", "manifest.json")
        },
        files=_files(store, base, [(k, m) for k, m in parsed if not m[3]]),
    )


def _files(store: ObjectStore, base: str, parsed: list[tuple[str, re.Match[str]]]) -> dict[tuple[str, int, str], Files]:
    grouped: dict[tuple[str, int, str], list[tuple[str, Stat | None]]] = defaultdict(list)
    for (key, m), stat in zip(parsed, many(lambda one: store.head(one[0]), parsed), strict=True):
        grouped[m[1], int(m[2]), m[4]].append((key, stat))
    return {
        (kind, number, learner): Files(
            prefix=f"{base}/{kind}/{number:08d}/{learner}",
            keys=tuple(key for key, _ in members),
            bytes=sum(stat.size for _, stat in members if stat),
            modified=max((stat.modified for _, stat in members if stat), default=0.0),
        )
        for (kind, number, learner), members in grouped.items()
    }
