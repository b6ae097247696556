"""The SmolLM2 example without its model: task files, scoring, and what is said when something is missing."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from rollout.cast import Cast, load_cast
from schemas.data import Task
from schemas.errors import RequestError
from schemas.messages import Message
from storage.rows import read_tasks
from tasks.initial import check_initial
from tasks.request import load, read_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2"
SPLITS = ("train", "held_out", "gate")


def cast() -> Cast:
    config, folder = read_config(str(EXAMPLE / "smollm2.toml"))
    return load_cast(config.environment, str(folder))


def tasks(split: str) -> list[Task]:
    file = EXAMPLE / "data" / f"{split}.jsonl"
    return read_tasks(file.read_bytes(), "jsonl", file.name)


def score(task: Task, reply: str) -> dict[str, float]:
    pytest.importorskip("reasoning_gym")
    environment = cast().make_environment(task)
    return environment.reward([Message("user", task.prompt), Message("assistant", reply)])  # type: ignore[return-value]


def test_the_task_files_are_what_the_script_makes(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    spec = importlib.util.spec_from_file_location("make_smollm2_data", EXAMPLE / "make_data.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(tmp_path)
    for split in SPLITS:
        made = [json.loads(line) for line in (tmp_path / f"{split}.jsonl").read_text().splitlines()]
        kept = [json.loads(line) for line in (EXAMPLE / "data" / f"{split}.jsonl").read_text().splitlines()]
        assert made == kept


def test_no_problem_stands_in_two_files() -> None:
    prompts = [t.prompt for split in SPLITS for t in tasks(split)]
    assert len(prompts) == len(set(prompts)) == 200


@pytest.mark.parametrize("generator", ["chain_sum", "products"])
def test_the_generator_scores_the_last_number(generator: str) -> None:
    task = next(t for t in tasks("train") if t.extra["dataset"] == generator and t.answer == "8")
    for right in ("8", "2 op 4 = 8", "The answer is 8.", "+8.0"):
        assert score(task, right) == {"reward": 1.0, "success": 1.0}
    for wrong in ("", "eight", "8 or 9", "8 is more than -6"):
        assert score(task, wrong) == {"reward": 0.0, "success": 0.0}
    assert score(task, "18") == {"reward": 0.5, "success": 0.0}


def test_every_answer_scores_in_full() -> None:
    assert all(score(t, f"so it is {t.answer}")["success"] == 1.0 for split in SPLITS for t in tasks(split))


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)  # importing it fails
    for name in [n for n in sys.modules if n.startswith("_headrace_user_") and n.endswith("_environment")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(RequestError) as refused:
        cast()
    assert str(refused.value).startswith("the package reasoning-gym, ") and "smollm2" in str(refused.value)


def test_a_missing_model_folder_names_the_script_that_makes_it(tmp_path: Path) -> None:
    request = load(str(EXAMPLE / "smollm2.toml"), ["model.path=not-built"], root=str(tmp_path / "root"))
    with pytest.raises(RequestError) as refused:
        check_initial(request)
    assert f"make it with `python {EXAMPLE / 'build.py'}`" in str(refused.value)
