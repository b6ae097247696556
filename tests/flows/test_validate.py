"""`headrace validate`: every gold answer is played and solves its task, a wrong one does not; every row of a warm-up
can be learned from; failures are named."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.projects import project, root

from flows.cli import main

__all__ = ["project", "root"]

OWN = """
from pathlib import Path

from rollout.environments import StepResult, ToolEnvironment
from schemas.messages import Message, ToolCall


class Worked(ToolEnvironment):
    def gold(self):
        call = ToolCall("calculator", {"expression": "1+1"})
        return [Message("assistant", tool_calls=(call,)), Message("assistant", self.task.answer)]


class Unknown(ToolEnvironment):
    def gold(self):
        return [] if self.task.id.endswith("-2") else [Message("assistant", self.task.answer)]


class Wrong(ToolEnvironment):
    def gold(self):
        return [Message("assistant", "7" if self.task.id == "train-3" else self.task.answer)]


class Endless(ToolEnvironment):
    def step(self, action):
        return StepResult([Message("user", "go on")])


class Raises(ToolEnvironment):
    def gold(self):
        raise KeyError("article")

    def close(self):
        Path(__file__).with_name("closed").touch()


class NoMessages(ToolEnvironment):
    def gold(self):
        return self.task.answer


class Fragile(ToolEnvironment):
    def step(self, action):
        int(action.text)
        return StepResult(done=True)


def anything(task, messages):
    return 1.0
"""


@pytest.fixture
def config(project: Path) -> str:
    (project / "own.py").write_text(OWN)
    return str(project / "small.toml")


def test_every_gold_answer_is_played(config: str, root: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", config, "--root", root, "--set", "environment.environment=own:Worked"]) == 0
    out = capsys.readouterr().out
    for words in (
        "rl.tasks (train.jsonl): 4 tasks, 4 gold answers solve theirs",
        "evaluation.tasks (heldout.jsonl): 20 tasks, 20 gold answers",
        "promotion.tasks (gate.jsonl): 20 tasks",
        "given      11  <|user|>train 0?<|end|><|assistant|>",
        "trained     5  <|call|>1+1<|end|>",
        "<|tool|>2<|end|><|assistant|>",
        "trained     2  0<|end|>",
    ):
        assert words in out
    assert not [p for p in Path(root).rglob("*") if p.is_file()]


def test_as_json(config: str, root: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "environment.environment=own:Unknown", "--tasks", "3"]
    assert main(["validate", config, "--root", root, "--json", *settings]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(f["setting"], f["tasks"], f["gold"], f["unknown"]) for f in found["files"]] == [
        ("rl.tasks", 4, 2, 1), ("evaluation.tasks", 20, 2, 1), ("promotion.tasks", 20, 2, 1),
    ]  # fmt: skip
    assert found["example"]["task"] == "train-0"
    assert [s["trained"] for s in found["example"]["spans"]] == [False, True]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("environment.environment=own:Wrong", ("`train-3`", "is not solved (reward 0, status succeeded)")),
        ("environment.environment=own:Endless", ("`train-0`", "all its turns are said")),
        ("environment.environment=own:Raises", ("`gold` of the task `train-0` raised KeyError",)),
        ("environment.environment=own:NoMessages", ("`train-0`", "list of assistant messages")),
        ("environment.environment=own:Fragile", ("`train-0`", "breaks the episode", "ValueError")),
        ("environment.reward=own:anything", ("`train-0`", "an answer that says nothing solves", "reward 1")),
        ("rollout.max_tokens_per_turn=1", ("`train-0`", "status max_tokens", "raise rollout.max_tokens_per_turn")),
    ],
)
def test_the_first_failure_is_one_sentence(
    config: str, root: str, setting: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", config, "--root", root, "--set", setting]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("headrace: rl.tasks (train.jsonl): ") and said.err.count("\n") == 1 and not said.out
    for word in words:
        assert word in said.err
    assert (Path(config).parent / "closed").exists() == ("Raises" in setting)


# -- what warm-ups learn from --------------------------------------------------------------------------------------

CALCULATOR = {"name": "calculator", "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}}}
CLOCK = CALCULATOR | {"name": "clock"}


def said(role: str, text: str = "", **calls: str) -> dict[str, Any]:
    made = [{"function": {"name": name, "arguments": {"expression": value}}} for name, value in calls.items()]
    return {"role": role, "content": text} | ({"tool_calls": made} if made else {})


def shown(*messages: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"messages": [said("user", "1+1"), *messages], **others}


def with_demonstrations(config: str, *rows: dict[str, Any]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (Path(config).parent / "demos.jsonl").write_text(text)


GOOD = shown(said("assistant", calculator="1+1"), said("tool", "2"), said("assistant", "2"), tools=[CALCULATOR])


def test_demonstrations_are_measured_and_shown(config: str, root: str, capsys: pytest.CaptureFixture[str]) -> None:
    other = shown(said("assistant", clock="UTC"), said("tool", "9"), said("assistant", "9"), tools=[CLOCK])
    with_demonstrations(config, GOOD, other)
    assert main(["validate", config, "--root", root, "--tasks", "1"]) == 0
    out = capsys.readouterr().out
    for words in (
        "warm_up.habit (demos.jsonl): 2 demonstrations of at most 17 tokens (max_length 256), ",
        "they call `clock`, which the environment does not offer",
        "The first of the demonstrations of warm_up.habit, in tokens",
        "given       6  <|user|>1+1<|end|><|assistant|>",
        "trained     5  <|call|>1+1<|end|>",
    ):
        assert words in out
    assert not [p for p in Path(root).rglob("*") if p.is_file()]


def test_what_opens_otherwise_than_an_episode_is_counted(
    config: str, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that was shown no system prompt is later asked with one."""
    told = shown(said("assistant", "2"))
    told["messages"].insert(0, said("system", "Compute."))
    with_demonstrations(config, GOOD, told, told)
    for prompt, count in (("", 2), ("Compute.", 1)):
        settings = ["--set", f'environment.system_prompt="{prompt}"', "--tasks", "0"]
        assert main(["validate", config, "--root", root, *settings]) == 0
        assert f"; {count} open otherwise than an episode with their question" in capsys.readouterr().out
    with_demonstrations(config, GOOD)
    assert main(["validate", config, "--root", root, "--tasks", "0"]) == 0
    assert "open otherwise" not in capsys.readouterr().out


def test_pairs_are_measured_on_both_sides(config: str, root: str, capsys: pytest.CaptureFixture[str]) -> None:
    pair = {"prompt": [said("user", "1+1")], "chosen": [said("assistant", "2")], "rejected": [said("assistant", "no")]}
    with_demonstrations(config, pair)
    text = Path(config).read_text().replace('name = "habit"', 'name = "habit"\nkind = "orpo"')
    Path(config).write_text(text)
    assert main(["validate", config, "--root", root, "--tasks", "1", "--json"]) == 0
    [taught] = json.loads(capsys.readouterr().out)["taught"]
    assert (taught["what"], taught["rows"], taught["longest"], taught["tokens"], taught["trained"]) == (
        "pairs", 1, 9, 17, 5,
    )  # fmt: skip
    with_demonstrations(config, pair, pair | {"rejected": [said("assistant", "n" * 300)]})
    assert main(["validate", config, "--root", root]) == 2
    assert "demos.jsonl line 2: prompt and `rejected` have 307 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "1+1"}, "`messages` must be a non-empty list"),
        (shown(said("user", "and?")), "needs at least one assistant message"),
        (shown(said("assistant", "2" * 300)), "the demonstration has 307 tokens, more than max_length = 256"),
        (shown(said("assistant", "2"), said("assistant", "3")), "two assistant messages follow each other"),
        (shown(said("assistant", clock="UTC")), "calls of `calculator` in the place of calls of `clock`"),
    ],
)
def test_a_row_that_can_not_be_learned_from_is_named(
    config: str, root: str, row: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with_demonstrations(config, GOOD, row)
    assert main(["validate", config, "--root", root, "--tasks", "0"]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("headrace: demos.jsonl line 2: ") and told.err.count("\n") == 1 and not told.out
    assert words in told.err


def test_a_wrong_number_of_tasks(config: str, root: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", config, "--root", root, "--tasks", "-1"]) == 2
    assert "--tasks -1: give 0 or more" in capsys.readouterr().err
