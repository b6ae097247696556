"""The coding recipe in tests: its tasks, its modules, and episodes in which given calls are made."""

import importlib
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from models.tokenizer import ByteTokenizer
from rollout.episode import Job
from rollout.gold import Prompter
from schemas.data import Task
from schemas.messages import Message, ToolCall
from schemas.trajectory import Trajectory
from storage.rows import read_tasks
from tasks.request import read_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "coding"
SPLITS = ("train", "held_out", "gate")


def module(name: str) -> ModuleType:
    """A module of the recipe, imported as its own files import it."""
    if str(EXAMPLE) not in sys.path:
        sys.path.append(str(EXAMPLE))
    return importlib.import_module(name)


@cache
def tasks(split: str) -> list[Task]:
    file = EXAMPLE / "data" / f"{split}.parquet"
    return read_tasks(file.read_bytes(), "parquet", file.name)


def turn(name: str, **arguments: Any) -> Message:
    """An assistant's turn with one call."""
    return Message("assistant", tool_calls=(ToolCall(name, arguments),))


async def played(task: Task, *turns: Message, **options: Any) -> Trajectory:
    """The episode in which these turns are said, through the real agent, tools, sandbox and judge."""
    config, folder = read_config(str(EXAMPLE / "scripted.toml"))
    environment = config.environment
    changed = environment.model_copy(update={"options": {**environment.options, **options}})
    prompter = Prompter(config.model_copy(update={"environment": changed}), str(folder), ByteTokenizer())
    return await prompter.say(Job(0, 0, 0, task), turns)
