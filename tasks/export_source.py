"""What is to leave the store: a checkpoint by name, or the champion of a channel, with all that says what it is."""

from dataclasses import dataclass

from schemas import config_text, keys
from schemas.config import Run
from schemas.manifest import CheckpointManifest, RLSpec, WeightsRef
from storage.audit_runs import find_checkpoint, read_spec
from storage.objects import ObjectStore
from tasks import registry
from tasks.checkpoints import split


@dataclass(frozen=True)
class Source:
    """A checkpoint that is to leave the store."""

    ref: str
    weights: WeightsRef
    manifest: CheckpointManifest
    spec: RLSpec

    @property
    def config(self) -> Run:
        """The configuration of the RL stage that made it."""
        return config_text.check(self.spec.config, keys.spec(keys.rl(self.spec.run, self.spec.key)))


def find_source(store: ObjectStore, text: str) -> Source:
    """What `RUN[@STEP]` or `NAME[:channel]` names; a plain name is a run, else the model of that name in the registry.

    RequestError where there is none or its weights are gone.
    """
    name, colon, channel = text.partition(":")
    if colon or not ("@" in text or store.head(keys.run_manifest(name))):
        entry = registry.standing(store, name, channel or registry.PRODUCTION).history[-1]
        return _source(store, entry.ref, entry.weights.sha256)
    return _source(store, text, "")


def _source(store: ObjectStore, text: str, weights_sha256: str) -> Source:
    run, step = split(text)
    base, manifest = find_checkpoint(store, run, step, weights_sha256)
    ref = f"{run}@{manifest.step}"
    registry.check_present(store, ref, manifest.policy)
    return Source(ref, manifest.policy, manifest, read_spec(store, base))
