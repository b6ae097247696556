"""What the user asked for, checked whole before any work starts: configuration, data, environment, root.

Everything that can be wrong with a request is found here and refused with one sentence (exit code 2).
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.user_modules import environment_sha256
from schemas import config_text, keys, seeds
from schemas.config import Run
from schemas.data import Task
from schemas.errors import RequestError
from schemas.manifest import RunManifest
from schemas.warm_ups import WarmUp
from storage.objects import ObjectStore
from storage.open import open_store
from storage.rows import read_demonstrations, read_preferences, read_tasks
from tasks import fingerprints
from tasks.fingerprints import DataSet, kind_of, of_file
from tasks.leaks import check_leaks
from tasks.selecting import selected_file
from tasks.sources import DataFile, keep, read_kept, read_source

DEFAULT_ROOT = "./.headrace"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Request:
    """A checked request for a run. `data`: setting (`rl.tasks`, `evaluation.suites.<name>`, …) → its file."""

    config: Run
    run: str
    folder: Path
    store: ObjectStore
    data: dict[str, DataFile]
    environment_sha256: str
    sets: dict[str, DataSet]
    """What each file asks, by its setting."""

    @property
    def seed(self) -> int:
        """What RL and evaluation sample by: the configuration's seed, else one from the run's name."""
        return seeds.derive("run", self.run) if self.config.seed is None else self.config.seed

    @property
    def warm_up_seed(self) -> int:
        """Warm-ups are shared between runs, so the run's name does not enter."""
        return self.config.seed or 0


def read_config(path: str, overrides: Sequence[str] = ()) -> tuple[Run, Path]:
    """The configuration in a TOML file and the file's folder."""
    file = Path(path).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(
            f"the configuration {path} can't be read ({getattr(error, 'strerror', None) or error})"
        ) from error
    return config_text.parse(text, path, overrides), file.resolve().parent


def root_url(given: str | None, config: Run | None = None, folder: Path = Path()) -> str:
    """Where everything is stored: `--root`, else HEADRACE_ROOT, else the configuration's root, else ./.headrace."""
    own = config.root if config else None
    if own is not None and "://" not in own:
        own = str(folder / Path(own).expanduser())
    chosen = given or os.environ.get("HEADRACE_ROOT") or own or DEFAULT_ROOT
    return chosen if "://" in chosen else str(Path(chosen).expanduser().absolute())


def check_run_name(name: str) -> str:
    """The name itself; RequestError where it can't name a run."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"`{name}` can't name a run: use letters, digits and . _ - (at most 100, a letter or digit first)"
        )
    return name


def load(path: str, overrides: Sequence[str] = (), *, root: str | None = None, run: str | None = None) -> Request:
    """The checked request of a configuration file."""
    config, folder = read_config(path, overrides)
    return build(config, folder, open_store(root_url(root, config, folder)), run)


def home(folder: str) -> Path:
    """Where a deployment's relative paths begin: as given, else HEADRACE_FOLDER, else the working folder."""
    return Path(folder or os.environ.get("HEADRACE_FOLDER", "")).absolute()


def from_record(store: ObjectStore, record: RunManifest, folder: str = "", environment: str | None = None) -> Request:
    """The request of a run that exists, from what the store keeps of it.

    `folder`: where the user's modules lie here (default: where the run has them). `environment`: their digest, where
    it is known; otherwise it is computed from the files.
    """
    config = config_text.check(record.config, keys.run_manifest(record.run))
    data = {setting: read_kept(store, key) for setting, key in record.data.items()}
    sets = {setting: of_file(store, setting, file) for setting, file in data.items()}
    where = Path(folder or record.folder)
    digest = environment_sha256(config, where) if environment is None else environment
    return Request(config, record.run, where, store, data, digest, sets)


def build(config: Run, folder: Path, store: ObjectStore, run: str | None) -> Request:
    """Check data and environment; nothing is written yet."""
    files = {setting: read_source(where, folder) for setting, where in task_files(config).items()}
    tasks = {setting: read_tasks(f.data, f.suffix, f.where) for setting, f in files.items()}
    _check_category(config.evaluation.category, tasks, files)
    name = check_run_name(run or config.name)
    files |= {f"warm_up.{stage.name}": _warm_up_file(stage, folder, store, name) for stage in config.warm_up}
    sets = {setting: of_file(store, setting, file, tasks.get(setting)) for setting, file in files.items()}
    check_leaks(sets)
    digest = environment_sha256(config, folder)
    return Request(config, name, folder, store, files, digest, sets)


def _warm_up_file(stage: WarmUp, folder: Path, store: ObjectStore, run: str) -> DataFile:
    """What a warm-up learns from: a file, or what it takes from the log of another run."""
    if not isinstance(stage.data, str):
        return selected_file(store, run, stage, stage.data)
    file = read_source(stage.data, folder)
    read = read_demonstrations if stage.kind == "sft" else read_preferences
    read(file.data, file.suffix, file.where)
    return file


def _check_category(field: str, sets: dict[str, list[Task]], files: dict[str, DataFile]) -> None:
    """Every task that figures are reported of has the field that tells categories apart; RequestError otherwise."""
    for setting, tasks in sets.items():
        missing = [t.id for t in tasks if field not in t.extra] if field and setting.startswith("evaluation.") else []
        if missing:
            raise RequestError(
                f"evaluation.category = `{field}`: the task `{missing[0]}` of {setting} ({files[setting].where}) has "
                f"no such field: add it, or leave the setting out"
            )


def task_files(config: Run) -> dict[str, str]:
    """Every task set of a configuration: setting → its file. No two may share a task."""
    suites = {suite.setting: suite.tasks for suite in config.evaluation.suites}
    own = {"rl.tasks": config.rl.tasks, "evaluation.tasks": config.evaluation.tasks}
    return own | {"promotion.tasks": config.promotion.tasks} | suites


def keep_data(request: Request) -> None:
    """Put the request's data files into the store, each with the digests by which later runs are compared with it."""
    for setting, file in request.data.items():
        keep(request.store, file)
        fingerprints.keep(request.store, file, kind_of(setting), request.sets[setting].digests)
