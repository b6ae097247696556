"""Names in the configuration: built in, or from files in its folder; every mistake is one sentence."""

import sys
from pathlib import Path
from typing import Any

import pytest

from rollout.cast import load_cast
from schemas.config import Environment
from schemas.data import Task
from schemas.errors import RequestError

MINE = """
from rollout.agents import ToolAgent
from rollout.environments import ToolEnvironment
from rollout.tools import BaseTool
import helper_of_mine

class Env(ToolEnvironment):
    def __init__(self, task, *, difficulty=1, **others):
        super().__init__(task, **others)
        self.difficulty = difficulty

class Lonely(ToolEnvironment):
    def __init__(self, task):
        super().__init__(task)

class Agent(ToolAgent):
    pass

class Tool(BaseTool):
    name = "calculator"

class Nameless(BaseTool):
    pass

class Plain:
    pass

def score(task, messages):
    return helper_of_mine.VALUE

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "trainer.py").write_text(MINE)  # named like a room of ours: loaded by path, it can't shadow it
    (tmp_path / "helper_of_mine.py").write_text("VALUE = 0.5")
    (tmp_path / "broken.py").write_text("raise OSError('no such device')")
    return tmp_path


def test_the_users_own_players(folder: Path) -> None:
    cast = load_cast(
        Environment(
            environment="trainer:Env",
            agent="trainer:Agent",
            tools=("calculator",),
            reward="trainer:score",
            options={"difficulty": 4},
            system_prompt="Be brief.",
        ),
        str(folder),
    )
    environment: Any = cast.make_environment(Task("1", "?", ""))
    assert environment.difficulty == 4
    assert cast.score(environment.task, []) == 0.5
    assert [t.name for t in cast.tool_specs] == ["calculator"]
    assert cast.make_agent().system_prompt == "Be brief."
    assert "trainer" not in sys.modules or str(folder) not in str(sys.modules["trainer"].__file__)
    assert sys.path[0] != str(folder)


def test_an_agent_without_tools_offers_none() -> None:
    cast = load_cast(Environment(agent="ModelAgent", environment="TaskEnvironment", tools=("calculator",)), ".")
    assert cast.tool_specs == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"environment": "Nope"}, "environment.environment = `Nope` is not built in"),
        ({"environment": "absent:Env"}, "there is no file"),
        ({"environment": "trainer:Nope"}, "defines no `Nope`"),
        ({"environment": "trainer:Plain"}, "must be a subclass of rollout.environments.BaseTaskEnv"),
        ({"environment": "../x:Env"}, "is not of the form `module:Name`"),
        ({"environment": "broken:Env"}, "can't be loaded (OSError: no such device)"),
        ({"agent": "trainer:score"}, "environment.agent = `trainer:score` must be a subclass"),
        ({"tools": ("calculator", "trainer:Tool")}, "registers a tool named `calculator` twice"),
        ({"tools": ("trainer:Nameless",)}, "has no `name`"),
        ({"reward": "almost"}, "environment.reward = `almost` is not built in (exact_match are)"),
        ({"reward": "trainer:number"}, "must be a function"),
        ({"environment": "trainer:Lonely"}, "environment.options do not fit Lonely"),
        (
            {"options": {"depth": 2}},
            "do not fit ToolEnvironment, which is made from (task, score=, tools=, and the options): got an unexpected",
        ),
    ],
)
def test_mistakes(folder: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        load_cast(Environment(**changes), str(folder))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
