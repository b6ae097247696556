"""Orbax snapshots of a train state in the store: saved to local scratch, uploaded file by file, verified by SHA-256."""

import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint.v1 as ocp

from models.weights import params_digest
from schemas import keys
from schemas.digest import sha256
from schemas.errors import RunStopped
from schemas.manifest import CheckpointManifest
from storage.objects import ObjectMissing, ObjectStore
from trainer.step import TrainState


def save(store: ObjectStore, base: str, state: TrainState, step: int, learner: str) -> tuple[str, dict[str, str]]:
    """Store a snapshot under the learner's own folder; returns its key prefix and each file's SHA-256."""
    prefix = keys.checkpoint_files(base, step, learner)
    with tempfile.TemporaryDirectory(prefix="headrace-") as scratch:
        folder = Path(scratch) / "state"
        ocp.save_pytree(folder, _tree(state))
        files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    for name, data in files.items():
        store.put(f"{prefix}/{name}", data)
    return prefix, {name: sha256(data) for name, data in files.items()}


def load(store: ObjectStore, manifest: CheckpointManifest, template: TrainState) -> TrainState:
    """The state of a checkpoint, bit by bit. `template` gives structure and shapes. RunStopped if it is damaged."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as scratch:
        folder = Path(scratch) / "state"
        for name, digest in manifest.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_verified(store, f"{manifest.prefix}/{name}", digest))
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype), _tree(template))
        tree = ocp.load_pytree(folder, abstract)
    leaves = jax.tree.map(jax.numpy.asarray, tree["optimizer"])
    state = TrainState(
        jax.tree.map(jax.numpy.asarray, tree["params"]),
        jax.tree.unflatten(jax.tree.structure(template.optimizer), [leaves[k] for k in sorted(leaves)]),
    )
    if params_digest(state.params) != manifest.params_sha256:
        raise RunStopped(f"the parameters of checkpoint {manifest.prefix} are not those that its manifest names")
    return state


def optimizer_digest(state: TrainState) -> str:
    """SHA-256 of the optimizer's arrays."""
    return params_digest(_tree(state)["optimizer"])


def _tree(state: TrainState) -> dict[str, Any]:
    """The state as nested dicts, which is what a snapshot can be read back from without our classes."""
    leaves = jax.tree.leaves(state.optimizer)
    return {"params": state.params, "optimizer": {f"{i:06d}": leaf for i, leaf in enumerate(leaves)}}


def _verified(store: ObjectStore, key: str, digest: str) -> bytes:
    try:
        data = store.get(key).data
    except ObjectMissing as error:
        raise RunStopped(f"the checkpoint file {key} is gone: restore it, or delete its manifest to use an older one") from error
    if sha256(data) != digest:
        raise RunStopped(f"the checkpoint file {key} was changed: restore it, or delete its manifest to use an older one")
    return data
