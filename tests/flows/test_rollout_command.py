"""`headrace rollout`: episodes with any policy, printed for people or as JSON; nothing is stored."""

import json
from pathlib import Path

import pytest
from support.projects import project, root

from flows.cli import main
from models.config import DecoderConfig
from models.pure import init_params
from models.tokenizer import ByteTokenizer
from models.weights import to_files
from schemas.data import demonstration

__all__ = ["project", "root"]

SHAPE = DecoderConfig(
    vocab_size=263, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, head_dim=4, max_position_embeddings=512,
)  # fmt: skip
SCRIPT = """
from models.chat import chat_format
from models.tokenizer import ByteTokenizer
from rollout.calculator import CalculatorTool
from schemas.messages import Message, ToolCall

CHAT = chat_format(ByteTokenizer(), (CalculatorTool().spec,))


def script(stream, seed, version):
    if stream.count(CHAT.stop_ids[0]) == 1:
        return CHAT.assistant(Message("assistant", tool_calls=(ToolCall("calculator", {"expression": "3-3"}),)))
    return CHAT.assistant(Message("assistant", "0"))
"""


@pytest.fixture
def scripted(project: Path) -> list[str]:
    """Settings for a model.path whose engine answers by a function."""
    (project / "weights").mkdir()
    for name, data in (to_files(SHAPE, init_params(SHAPE, 0)) | ByteTokenizer().to_files()).items():
        (project / "weights" / name).write_bytes(data)
    (project / "say.py").write_text(SCRIPT)
    settings = ("model.path=weights", "rollout.engine=scripted", "rollout.script=say:script")
    return [word for setting in settings for word in ("--set", setting)]


def untouched(root: str) -> bool:
    return not [p for p in Path(root).rglob("*") if p.is_file()]


def test_gold_answers_are_said(project: Path, root: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout", str(project / "small.toml"), "--root", root, "--policy", "gold", "--episodes", "5"]) == 0
    out = capsys.readouterr().out
    assert "train-3 (sample 0): solved, reward 1, exact_match 1; succeeded, 2 of 13 tokens sampled" in out
    assert "  user       train 3?\n  assistant  3\n  expected   3" in out
    assert "train-0 (sample 1): solved" in out  # four tasks, five episodes
    assert out.endswith("success 100.0%, mean reward 1.000; 5 succeeded\n") and untouched(root)


def test_a_model_is_sampled(project: Path, root: str, scripted: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout", str(project / "small.toml"), "--root", root, "--json", "--episodes", "4", *scripted]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [e["task"] for e in found["episodes"]] == [f"train-{i}" for i in range(4)]
    assert [e["solved"] for e in found["episodes"]] == [True, False, False, False]
    assert [m["role"] for m in found["episodes"][1]["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert found["success"] == 0.25 and found["statuses"] == {"succeeded": 4} and untouched(root)


@pytest.mark.slow
def test_the_embedded_engine_samples(
    project: Path, root: str, scripted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [*scripted[:2], "--set", "rollout.max_length=24", "--set", "rollout.slots=4", "--temperature", "0"]
    for _ in range(2):
        assert (
            main(["rollout", str(project / "small.toml"), "--root", root, "--json", "--episodes", "3", *settings]) == 0
        )
    found = json.loads(capsys.readouterr().out.partition("}\n{")[0] + "}")
    assert len(found["episodes"]) == 3 and all(e["sampled"] > 0 for e in found["episodes"]) and untouched(root)


def test_calls_and_other_tasks_in_words(
    project: Path, root: str, scripted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--episodes", "1", "--from", "evaluation.tasks", "--set", "environment.max_turns=1"]
    assert main(["rollout", str(project / "small.toml"), "--root", root, *scripted, *more]) == 0
    out = capsys.readouterr().out
    assert "heldout-0 (sample 0): not solved, reward 0; max_turns" in out
    assert '  assistant  calculator({"expression": "3-3"})\n  tool       0\n' in out


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ((), "there are no weights to sample with"),
        (("--episodes", "0"), "--episodes 0: give at least 1"),
        (("--temperature", "-1"), "--temperature -1: give 0 or more"),
        (("--checkpoint", "nothing@3"), "there is no run `nothing`"),
        (("--from", "rl.task"), "--from rl.task: the configuration has tasks in rl.tasks, evaluation.tasks"),
        (("--set", "model.path=nowhere"), "there is no weights folder"),
        (("--policy", "gold", "--set", "environment.environment=own:Unknown"), "knows no gold answer to the task"),
    ],
)
def test_wrong_requests(
    project: Path, root: str, argv: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "from rollout.environments import ToolEnvironment\nclass Unknown(ToolEnvironment):\n    gold = lambda _: []\n"
    )
    (project / "own.py").write_text(text)
    assert main(["rollout", str(project / "small.toml"), "--root", root, *argv]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("headrace: ") and said.err.count("\n") == 1 and not said.out
    assert sentence in said.err


def test_solved_episodes_become_demonstrations(
    project: Path, root: str, scripted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    config, file = str(project / "small.toml"), project / "solved.jsonl"
    words = ["--root", root, "--episodes", "4", "--demonstrations", str(file)]
    assert main(["rollout", config, *words, *scripted]) == 0
    assert "1 demonstrations written" in capsys.readouterr().err
    (line,) = file.read_text().splitlines()
    found = demonstration(json.loads(line), "here")
    assert [m.role for m in found.messages] == ["user", "assistant", "tool", "assistant"]
    assert found.messages[1].tool_calls[0].name == "calculator" and [t.name for t in found.tools] == ["calculator"]
    assert main(["validate", config, "--root", root, "--set", f"warm_up.0.data={file}"]) == 0
    assert main(["rollout", config, *words, *scripted]) == 2
    assert "is there already" in capsys.readouterr().err and untouched(root)


@pytest.mark.parametrize(("name", "words"), [("x.csv", "ends in .jsonl"), ("no/x.jsonl", "there is no folder")])
def test_a_file_that_demonstrations_cannot_go_to(
    project: Path, root: str, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    gold = ["rollout", str(project / "small.toml"), "--root", root, "--policy", "gold"]
    assert main([*gold, "--demonstrations", str(project / name)]) == 2
    assert words in capsys.readouterr().err


def test_nothing_solved_is_no_demonstration(
    project: Path, root: str, scripted: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = project / "solved.jsonl"
    (project / "train.jsonl").write_text(json.dumps({"id": "hard", "prompt": "8?", "answer": "8"}) + "\n")
    words = ["--episodes", "2", "--demonstrations", str(file), *scripted]
    assert main(["rollout", str(project / "small.toml"), "--root", root, *words]) == 2
    assert "no episode of one conversation is solved" in capsys.readouterr().err and not file.exists()
