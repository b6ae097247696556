"""The user's modules are what a stage was made with, in every process, whenever it starts and wherever it runs."""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest
from support import real_stage
from support.protocol import BASE

from models.user_modules import environment_sha256
from rollout import evaluate, worker
from schemas import keys
from schemas.config import Run
from schemas.errors import RunStopped
from schemas.evaluation import EvaluationSpec
from schemas.manifest import RLSpec
from storage.control import read_worker
from storage.open import open_store
from trainer import learner_process


def named(run: Run, module: str) -> Run:
    """A run whose environment is of that module."""
    environment = run.environment.model_copy(update={"environment": f"{module}:World", "reward": "exact_match"})
    return run.model_copy(update={"environment": environment})


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., str]:
    """Write files and give the digest of the modules that `world.py` comes to."""

    def write(**texts: str) -> str:
        for name, text in texts.items():
            path = tmp_path / (name.replace("__", "/") + ".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return environment_sha256(named(real_stage.small(), "world"), tmp_path)

    return write


@pytest.mark.parametrize(
    "line",
    [
        "import helper",
        "import helper as h",
        "from helper import thing",
        "from helper import *",
        "def late():\n    import helper",
        "import other",
        "import pack.inner",
        "from pack import inner",
        "from pack.inner import thing",
        "command = ('python', 'helper.py')",
        "command = ('python', 'pack/inner.py')",
    ],
)
def test_what_a_module_imports_from_its_folder_counts(files: Callable[..., str], line: str) -> None:
    around = {"other": "import helper", "pack__inner": "from . import deep", "pack__deep": "from .. import helper"}
    before = files(world=line, helper="thing = 1", stranger="x = 1", **around)
    assert files(stranger="x = 2") == before
    assert files(helper="thing = 2") != before
    assert files(helper="thing = 1") == before
    assert ("pack" in line) == (files(pack__deep="from .. import helper  # changed") != before)


def test_circles_strangers_and_what_cannot_be_parsed(files: Callable[..., str]) -> None:
    first = files(world="import helper, json, numpy.linalg, world", helper="import world\nfrom ..... import above")
    assert first == files() != files(helper="this is no Python")
    assert files(helper="\0")


def play(root: str) -> None:
    worker.main(argparse.Namespace(root=root, base=BASE, index=0, folder=""))


def learn(root: str) -> None:
    learner_process.main(argparse.Namespace(root=root, base=BASE))


def measure(root: str) -> None:
    evaluate.main(argparse.Namespace(root=root, spec="spec.json", niceness=0))


@pytest.mark.parametrize("main", [play, learn, measure])
def test_no_process_starts_with_other_modules_than_its_stage(tmp_path: Path, main: Callable[[str], None]) -> None:
    root = str(tmp_path / "root")
    store = open_store(root)
    spec = real_stage.lay_out(store, tmp_path, real_stage.small())
    assert RLSpec.from_bytes(store.get(keys.spec(BASE)).data, "spec").environment_sha256
    shared = spec.model_dump(include={"run", "config", "folder", "environment_sha256", "tasks", "tasks_sha256", "seed"})
    playing = {"name": "candidate", "checkpoint": "test@1", "weights": spec.initial, "temperature": 1.0, "samples": 1}
    asked = EvaluationSpec.model_validate(shared | playing | {"confidence": 0.95, "output": "out"})
    store.put("spec.json", asked.to_bytes())
    with (tmp_path / "twice.py").open("a") as file:
        file.write("# changed\n")
    before = store.list("")
    with pytest.raises(RunStopped, match=r"no longer those that run test began this stage with .*: put them back"):
        main(root)
    assert store.list("") == before and read_worker(store, BASE, 0) is None
