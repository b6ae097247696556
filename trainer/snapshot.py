"""Orbax snapshots of a train state in the store: saved to local scratch, uploaded file by file, verified by SHA-256."""

import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import jax
from orbax.checkpoint import v1 as ocp

from models.weights import params_digest
from schemas import keys
from schemas.digest import sha256
from schemas.errors import RunStopped
from schemas.manifest import CheckpointManifest
from storage.objects import ObjectMissing, ObjectStore
from trainer.step import TrainState

_REMEDY = "restore it, or delete its manifest to use an older checkpoint"


def save(store: ObjectStore, base: str, state: TrainState, step: int, learner: str) -> tuple[str, dict[str, str]]:
    """Store a snapshot under the learner's own folder; returns its key prefix and each file's SHA-256. All processes of
    a learner make this call with a state that they can read; the first one writes."""
    prefix = keys.checkpoint_files(base, step, learner)
    with _scratch(f"{learner}-{step}") as scratch:
        folder = scratch / "state"
        ocp.save(str(folder), _tree(state))
        if jax.process_index():
            return prefix, {}
        files = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if p.is_file()}
        return prefix, {name: _stored(store, f"{prefix}/{name}", path) for name, path in files.items()}


@contextmanager
def _scratch(name: str) -> Generator[Path]:
    """A temporary folder. Orbax wants it to have one name in all processes: then it is called `name`, and is the first
    one's to remove."""
    if jax.process_count() == 1:
        with tempfile.TemporaryDirectory(prefix="headrace-") as scratch:
            yield Path(scratch)
        return
    folder = Path(tempfile.gettempdir()) / f"headrace-{name}"
    try:
        yield folder
    finally:
        if not jax.process_index():
            shutil.rmtree(folder, ignore_errors=True)


def _alone() -> ocp.Context:
    """Reading, Orbax waits for no other process: each reads what it has fetched for itself."""
    own = jax.process_index()
    return ocp.Context(
        multiprocessing_options=ocp.options.MultiprocessingOptions(primary_host=own, active_processes={own})
    )


def _stored(store: ObjectStore, key: str, path: Path) -> str:
    """Upload one file and give its SHA-256; one at a time, since together they are as large as the state."""
    data = path.read_bytes()
    store.put(key, data)
    return sha256(data)


def load(
    store: ObjectStore, manifest: CheckpointManifest, template: TrainState, named: Callable[[TrainState], bool]
) -> TrainState:
    """The state of a checkpoint, bit by bit. `template` gives structure and shapes, `named` says whether a state is
    the one that the manifest names. RunStopped if it is damaged."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as scratch, _alone():
        folder = Path(scratch) / "state"
        for name, digest in manifest.files.items():
            path = _inside(folder, name, manifest.prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_verified(store, f"{manifest.prefix}/{name}", digest))
        # Placed as the template is: the devices that saved it need not be here.
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), _tree(template))
        tree = cast("dict[str, Any]", ocp.load(str(folder), abstract))
    leaves = jax.tree.map(jax.numpy.asarray, tree["optimizer"])
    state = TrainState(
        jax.tree.map(jax.numpy.asarray, tree["params"]),
        jax.tree.unflatten(jax.tree.structure(template.optimizer), [leaves[k] for k in sorted(leaves)]),
    )
    if not named(state):
        raise RunStopped(
            f"the state in checkpoint {manifest.prefix} is not the one that its manifest names: restore it"
        )
    return state


def optimizer_digest(state: TrainState, *, trained: bool = False) -> str:
    """SHA-256 of the optimizer's arrays; with `trained` of what it trains as well."""
    tree = _tree(state)
    return params_digest(tree if trained else tree["optimizer"])


def _tree(state: TrainState) -> Any:
    """The state as nested dicts, which is what a snapshot can be read back from without our classes."""
    leaves = jax.tree.leaves(state.optimizer)
    return {"params": state.params, "optimizer": {f"{i:06d}": leaf for i, leaf in enumerate(leaves)}}


def _inside(folder: Path, name: str, prefix: str) -> Path:
    """Where a stored file goes below `folder`: names come from the store, so they must not lead elsewhere."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise RunStopped(f"the manifest of checkpoint {prefix} names a file outside it ({name}): restore the manifest")
    return folder / name


def _verified(store: ObjectStore, key: str, digest: str) -> bytes:
    try:
        data = store.get(key).data
    except ObjectMissing as error:
        raise RunStopped(f"the checkpoint file {key} is gone: {_REMEDY}") from error
    if sha256(data) != digest:
        raise RunStopped(f"the checkpoint file {key} was changed: {_REMEDY}")
    return data
