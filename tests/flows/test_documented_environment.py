"""The environment written out in `docs/environments.md`: its files are valid, prove their gold answers, and train."""

import json
import re
import runpy
from pathlib import Path

import pytest
from support.projects import root

from flows.cli import main
from storage import audit
from storage.open import open_store

__all__ = ["root"]

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
FILES = re.compile(r"^```\w+ (\S+\.\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHORT = (
    "warm_up.habit.steps=2", "warm_up.habit.batch_size=4", "model.architecture.hidden_size=16", "rl.steps=2",
    "rl.groups_per_batch=2", "rl.group_size=2", "evaluation.temperatures=[1.0]",
)  # fmt: skip


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with the page's files, whose script has made the data."""
    found = dict(FILES.findall(PAGE.read_text(encoding="utf-8")))
    assert sorted(found) == ["doors.py", "make_data.py", "run.toml"]
    for name, text in found.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path("make_data.py")
    return str(tmp_path / "run.toml")


def test_it_is_short_and_every_gold_answer_is_proven(
    config: str, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [(Path(config).parent / name).read_text().splitlines() for name in ("doors.py", "make_data.py")]
    assert sum(map(len, lines)) < 65 and len(lines[0]) < 60
    assert main(["validate", config, "--root", root, "--tasks", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(f["tasks"], f["gold"]) for f in found["files"]] == [(2000, 20), (100, 20), (100, 20)]
    [taught] = found["taught"]
    assert (taught["rows"], taught["longest"], taught["unknown_tools"]) == (4000, 30, [])
    assert main(["rollout", config, "--root", root, "--policy", "gold", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["success"] == 1.0 and found["reward"] == pytest.approx(0.98)


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_it_trains_and_adds_up(config: str, root: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [word for setting in SHORT for word in ("--set", setting)]
    code = main(["run", config, "--root", root, *settings])
    said = capsys.readouterr()
    assert code == 0, said.out + said.err
    assert audit.verify(open_store(root, write=False), "doors").ok
    assert main(["rollout", config, "--root", root, "--checkpoint", "doors@2", "--json", *settings]) == 0
    assert len(json.loads(capsys.readouterr().out)["episodes"]) == 8
