"""`run.json`: what a run is, created once, brought up to date whenever the run is started again."""

import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from schemas import keys
from schemas.digest import digest
from schemas.errors import RequestError
from schemas.manifest import RunManifest
from schemas.version import code_version
from storage.documents import read_document
from storage.objects import GenerationMismatch, ObjectStore
from tasks.initial import keeps_initial, resolve
from tasks.request import Request


def read_run(store: ObjectStore, run: str) -> RunManifest | None:
    """The run's manifest, or None; RequestError if another schema version wrote it."""
    key = keys.run_manifest(run)
    return read_document(store, RunManifest, key)


def existing_run(store: ObjectStore, run: str) -> RunManifest:
    """The run's manifest; RequestError where there is no such run."""
    found = read_run(store, run)
    if found is None:
        raise RequestError(f"there is no run `{run}` in {store.url}: `headrace status` lists the runs")
    return found


def newest_rl(manifest: RunManifest) -> str:
    """The folder of the run's newest RL stage; empty before it has one."""
    key = manifest.stages.get("rl") or next(reversed(manifest.rl_keys), "")
    return keys.rl(manifest.run, key) if key else ""


def prepare(request: Request, *, schedule: str = "") -> RunManifest:
    """The manifest of this request, before it is written. A resumed run keeps the weights that it started from."""
    config = request.config.model_dump(mode="json")
    standing = read_run(request.store, request.run)
    if standing is None:
        return _new(request, config, schedule)
    changes: dict[str, Any] = {"config": config, "config_digest": digest(config), "seed": request.seed}
    changes |= {"folder": str(request.folder), "data": _data(request)}
    if not keeps_initial(standing, request.config):
        changes["initial"], changes["parents"] = resolve(request)
    return standing.model_copy(update=changes)


def save(store: ObjectStore, manifest: RunManifest) -> None:
    """Write the manifest; the run's lease keeps other writers away."""
    store.put(keys.run_manifest(manifest.run), manifest.to_bytes())


def change(store: ObjectStore, run: str, **changes: Any) -> RunManifest:
    """Change fields of the stored manifest by compare-and-swap."""
    key = keys.run_manifest(run)
    while True:
        stored = store.get(key)
        changed = RunManifest.from_bytes(stored.data, key).model_copy(update=changes)
        try:
            store.swap(key, changed.to_bytes(), stored.generation)
            return changed
        except GenerationMismatch:
            continue


def _new(request: Request, config: dict[str, Any], schedule: str) -> RunManifest:
    initial, parents = resolve(request)
    return RunManifest(
        run=request.run,
        config=config,
        config_digest=digest(config),
        seed=request.seed,
        folder=str(request.folder),
        data=_data(request),
        parents=parents,
        initial=initial,
        code=code_version(),
        commit=_commit(),
        python=platform.python_version(),
        created=time.time(),
        schedule=schedule,
    )


def _data(request: Request) -> dict[str, str]:
    return {setting: file.key for setting, file in request.data.items()}


def _commit() -> str:
    """The commit of the code, where it runs from a checkout; empty otherwise."""
    home = Path(__file__).resolve().parent.parent
    if not (home / ".git").exists():
        return ""
    found = subprocess.run(["git", "-C", str(home), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else ""
