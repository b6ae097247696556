"""Publishing policies: weights under the learner's own folder first, then the manifest that makes them the policy.

The first manifest of a version stands. Weights of old versions are removed; their manifests stay.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from schemas import keys
from schemas.manifest import Numerics, PolicyManifest, Probe, WeightsRef
from storage.documents import read_document
from storage.objects import ObjectExists, ObjectStore


@dataclass(frozen=True)
class Publisher:
    """Publishes the policies of one RL stage for one learner."""

    store: ObjectStore
    base: str
    run: str
    learner: str
    save: Callable[[str, Any, str], WeightsRef]
    """(key prefix, parameters, origin) → the weights as stored."""
    dtype: str
    keep: int
    """Newest versions whose weights are kept beside those of checkpoints."""

    def publish(
        self, params: Any, version: int, step: int, ledger_head: str, probe: Probe, numerics: Numerics
    ) -> PolicyManifest:
        """Make these parameters policy `version`, unless that version is published already; returns what stands."""
        standing = self.read(version)
        if standing is not None:
            return standing
        prefix = keys.policy_weights(self.base, version, self.learner)
        origin = f"{self.run}@{step}"
        weights = self.save(prefix, params, origin)
        manifest = PolicyManifest(
            version=version,
            step=step,
            learner=self.learner,
            weights=weights,
            dtype=self.dtype,
            ledger_head=ledger_head,
            probe=probe,
            numerics=numerics,
        )
        try:
            self.store.create(keys.policy_manifest(self.base, version), manifest.to_bytes())
        except ObjectExists:
            return self._standing(version)
        return manifest

    def read(self, version: int) -> PolicyManifest | None:
        """The manifest of a published version."""
        key = keys.policy_manifest(self.base, version)
        return read_document(self.store, PolicyManifest, key)

    def _standing(self, version: int) -> PolicyManifest:
        key = keys.policy_manifest(self.base, version)
        return PolicyManifest.from_bytes(self.store.get(key).data, key)

    def retire(self, version: int, kept: set[int]) -> None:
        """Remove the weights of the version that falls out of the newest `keep`, unless a checkpoint needs them."""
        old = version - self.keep
        if old < 0 or old in kept:
            return
        manifest = self.read(old)
        if manifest is not None:
            for key in self.store.list(f"{manifest.weights.prefix}/"):
                self.store.delete(key)
