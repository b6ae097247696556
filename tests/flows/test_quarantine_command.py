"""`headrace quarantine`: which tasks a run does not play any more, why, and taking them back into play."""

import json
from pathlib import Path

import pytest
from support.gated import ended
from support.projects import fakes, project, root

from flows.cli import main
from rollout.quarantine import Quarantine
from schemas import config_text, keys
from schemas.quarantine import TaskTrouble
from storage.objects import ObjectStore
from storage.open import open_store
from storage.quarantine import change_trouble
from storage.rows import read_tasks
from tasks.record import existing_run, newest_rl

__all__ = ["fakes", "project", "root"]

TROUBLES = (
    TaskTrouble(task=0, task_id="train-0", groups=(1, 4), cause="environment_error: boom"),
    TaskTrouble(task=1, task_id="train-1", deadly="3 workers in a row ended while they played it"),
    TaskTrouble(task=2, task_id="train-2", groups=(2,), cause="flooded"),
    TaskTrouble(task=3, task_id="train-3"),
)


@pytest.fixture
def troubled(project: Path, root: str) -> str:
    """A store with a run that knows trouble with three of its four tasks."""
    ended(project, root)
    store = open_store(root)
    for trouble in TROUBLES:
        change_trouble(store, newest_rl(existing_run(store, "small")), trouble, lambda t: t)
    return root


def reasons(store: ObjectStore, project: Path) -> list[str]:
    """What a worker would say of each task."""
    manifest = existing_run(store, "small")
    config = config_text.check(manifest.config, keys.run_manifest("small"))
    tasks = read_tasks((project / "train.jsonl").read_bytes(), "jsonl", "train.jsonl")
    judge = Quarantine(store, newest_rl(manifest), config, tasks)
    return [judge.reason(number) for number in range(4)]


def said(command: list[str], root: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    capsys.readouterr()
    assert main(["quarantine", *command, "--root", root]) == code
    found = capsys.readouterr()
    return found.err if code else found.out


def test_the_list_names_tasks_and_causes(troubled: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = said(["list", "small"], troubled, capsys).splitlines()
    assert "task train-0 is in quarantine: every attempt at it failed in 2 groups" in first and "boom" in first
    assert second == "task train-1 is in quarantine: 3 workers in a row ended while they played it"
    assert "task train-2 is still played" in third and "in 1 of its groups" in third
    found = json.loads(said(["list", "small", "--json"], troubled, capsys))["tasks"]
    assert [(t["task"], t["quarantined"], t["failed_groups"]) for t in found] == [
        ("train-0", True, 2), ("train-1", True, 0), ("train-2", False, 1),
    ]  # fmt: skip


def test_a_released_task_is_played_again(troubled: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(troubled)
    assert [bool(r) for r in reasons(store, project)] == [True, True, False, False]
    assert "released: train-1, train-0; played again" in said(
        ["release", "small", "train-1", "train-0", "train-1"], troubled, capsys
    )
    assert reasons(store, project) == ["", "", "", ""]
    assert "train-0" not in said(["list", "small"], troubled, capsys)
    text = said(["release", "small", "train-2", "--json"], troubled, capsys)
    assert json.loads(text) == {"run": "small", "released": ["train-2"]}
    assert said(["list", "small"], troubled, capsys) == "no task of run small is in quarantine\n"


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["list", "typo"], "there is no run `typo` in"),
        (["release", "typo", "train-0"], "there is no run `typo` in"),
        (["release", "small", "train-0", "train-3"], "the task `train-3` is not in quarantine in run small: `headrace"),
    ],
)
def test_a_wrong_name_is_one_sentence_and_changes_nothing(
    troubled: str, project: Path, capsys: pytest.CaptureFixture[str], command: list[str], sentence: str
) -> None:
    text = said(command, troubled, capsys, code=2)
    assert sentence in text and text.count("\n") == 1
    assert all(reasons(open_store(troubled), project)[:2])
