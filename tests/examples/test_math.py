"""The math example without a model: its parser of answers, questions in the shape of GSM8K, and every gold answer."""

import importlib
import importlib.util
import json
import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest

from flows.cli import main
from rollout.cast import load_cast
from rollout.environments import BaseTaskEnv
from schemas.data import Task
from schemas.messages import Message
from storage.rows import read_tasks
from tasks.request import read_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "math"
SPLITS = ("train", "held_out", "gate")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The example's own modules."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    return {name: importlib.import_module(name) for name in ("answers", "questions")}


def environment(task: Task) -> BaseTaskEnv:
    config, folder = read_config(str(EXAMPLE / "math.toml"))
    return load_cast(config.environment, str(folder)).make_environment(task)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42), ("42.0", 42), ("$42", 42), ("1,234", 1234), ("#### 42", 42), ("3/4", Fraction(3, 4)),
        ("1 1/2", Fraction(3, 2)), ("-3", -3), ("\u22123", -3), ("x is -3", -3), ("= - 3", -3), ("9-4", 4),
        ("9 - 4", 4), ("-$5", -5), ("$-5", -5), ("first 12, then 13.", 13), (r"\boxed{7} and so 8", 7),
        (r"\boxed{\frac{1}{2}}", Fraction(1, 2)), ("#### 5\nor 6", 5), ("1e3", 1000), (".5", Fraction(1, 2)),
        ("1/0", None), ("", None), ("none", None), ("#### ", None), ("9" * 100_000, None),
        ("1e-99", Fraction(1, 10**99)),
    ],
)  # fmt: skip
def test_a_number_is_read_however_it_is_written(
    modules: dict[str, ModuleType], text: str, number: int | Fraction | None
) -> None:
    assert modules["answers"].read_number(text) == number


def test_answers_are_compared_as_numbers_or_else_as_text(modules: dict[str, ModuleType]) -> None:
    same = modules["answers"].same_answer
    assert same("so 0.5", "1/2") and same("1,234.00", "1234") and same("0.3333333333", "1/3") and same(" yes ", "Yes")
    assert (
        not same("0.33", "1/3")
        and not same("", "5")
        and not same("5", "-5")
        and not same("", "")
        and not same("0.1", "0")
    )


def test_a_row_of_gsm8k_becomes_a_problem_with_its_steps(modules: dict[str, ModuleType]) -> None:
    row = {"question": " How many? ", "answer": "48/2 = <<48/2=24>>24, half: <<5*x=9>>\n<<24+1=99>>\n#### 1,224"}
    assert modules["questions"].problem(row) == {
        "prompt": "How many?", "answer": "1,224", "dataset": "questions", "calls": [["calculator", "48/2"]]
    }  # fmt: skip
    with pytest.raises(ValueError, match="does not end in `#### number`"):
        modules["questions"].problem({"question": "How many?", "answer": "five"})


def test_own_questions_take_the_place_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)  # importing it fails
    script = make_data(monkeypatch)
    rows = [{"question": f"{i}+1?", "answer": f"<<{i}+1={i + 1}>>\n#### {i + 1}"} for i in range(100)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    script.main(tmp_path / "out", tmp_path / "mine.jsonl")
    sizes = {s: len(read_tasks((tmp_path / f"out/{s}.jsonl").read_bytes(), "jsonl", s)) for s in SPLITS}
    assert sizes == {"train": 11, "held_out": 3, "gate": 2}
    shown = json.loads(pq.read_table(tmp_path / "out/skill.parquet")["messages"][0].as_py())
    assert [m["role"] for m in shown] == ["user", "assistant", "tool", "assistant"]
    assert shown[2]["content"] == shown[3]["content"]


def test_the_data_files_are_what_the_script_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym")
    make_data(monkeypatch).main(tmp_path, shares={"held_out": 300, "gate": 200, "train": 1024, "skill": 50})
    for split in SPLITS:
        assert (tmp_path / f"{split}.jsonl").read_text() == (EXAMPLE / "data" / f"{split}.jsonl").read_text()
    kept = pq.read_table(EXAMPLE / "data/skill.parquet")
    assert kept.num_rows == 6000 and pq.read_table(tmp_path / "skill.parquet").equals(kept.slice(0, 50))


def make_data(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example's `make_data.py`, loaded as a script would be."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.setitem(sys.modules, "environment", module("environment"))
    return module("make_data")


def module(name: str) -> ModuleType:
    """A file of the example under a name of its own: another example has an `environment.py` too."""
    spec = importlib.util.spec_from_file_location(f"math_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_no_problem_stands_in_two_files() -> None:
    asked = [t.prompt for s in SPLITS for t in read_tasks((EXAMPLE / f"data/{s}.jsonl").read_bytes(), "jsonl", s)]
    for name in ("skill", "habit"):
        asked += [
            json.loads(m)[0]["content"] for m in pq.read_table(EXAMPLE / f"data/{name}.parquet")["messages"].to_pylist()
        ]
    assert len(asked) == len(set(asked)) == 9024


async def test_the_right_number_is_paid_and_calls_are_recorded() -> None:
    world = environment(Task("t", "q", "1,200"))
    told = [Message("tool", "1200", name="calculator"), Message("assistant", "It is $1200.00")]
    assert await world.reward(told) == {"reward": 1.0, "success": 1.0, "calculator": 1.0, "python": 0.0}
    wrong = await world.reward([Message("assistant", "?")])
    assert wrong == {"reward": 0.0, "success": 0.0, "calculator": 0.0, "python": 0.0}


def test_gold_answers_are_proven_by_their_tools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["validate", str(EXAMPLE / "math.toml"), "--root", str(tmp_path), "--tasks", "8", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(f["tasks"], f["gold"]) for f in found["files"]] == [(1024, 8), (300, 8), (200, 8)]
