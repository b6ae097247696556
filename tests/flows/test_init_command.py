"""`headrace init`: what it makes is valid, proves its gold answers and runs; it never touches a folder with files."""

import json
from pathlib import Path

import pytest
from support.projects import fakes, root

from flows.cli import main
from storage import audit
from storage.open import open_store

__all__ = ["fakes", "root"]

SHORT = (
    "warm_up.habit.steps=2", "warm_up.habit.batch_size=4", "model.architecture.hidden_size=16", "rl.steps=2",
    "rl.groups_per_batch=2", "rl.group_size=2", "evaluation.temperatures=[1.0]",
)  # fmt: skip


@pytest.fixture
def config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["init", str(tmp_path / "new")]) == 0
    assert f"headrace validate {tmp_path}/new/run.toml" in capsys.readouterr().out
    return str(tmp_path / "new/run.toml")


def test_every_gold_answer_of_it_is_proven(config: str, root: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", config, "--root", root, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(f["tasks"], f["gold"]) for f in found["files"]] == [(450, 450), (100, 100), (100, 100)]
    assert len((Path(config).parent / "environment.py").read_text().splitlines()) < 60
    assert main(["rollout", config, "--root", root, "--policy", "gold", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["success"] == 1.0


@pytest.mark.usefixtures("prefect_server", "fakes")
def test_it_runs_with_stand_ins(config: str, root: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["run", config, "--root", root])
    said = capsys.readouterr()
    assert code == 0, said.out + said.err
    assert "learner: step 40/40" in said.out


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_it_trains_and_its_checkpoint_plays(config: str, root: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [word for setting in SHORT for word in ("--set", setting)]
    code = main(["run", config, "--root", root, *settings])
    said = capsys.readouterr()
    assert code == 0, said.out + said.err
    assert audit.verify(open_store(root, write=False), "letters").ok
    assert main(["rollout", config, "--root", root, "--checkpoint", "letters@2", "--json", *settings]) == 0
    assert len(json.loads(capsys.readouterr().out)["episodes"]) == 8


def test_a_folder_with_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert f"headrace: {tmp_path} is not empty (notes.txt)" in err and err.count("\n") == 1
    assert [item.name for item in tmp_path.iterdir()] == ["notes.txt"]


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["init", str(tmp_path / "file/below")]) == 2
    err = capsys.readouterr().err
    assert "can't be written" in err and err.count("\n") == 1
