"""A policy without a model that solves the recipe's tasks, for the scripted engine.

It sees what a model would: the tokens of the conversation. It knows the patch of the issue that it reads there, and
takes its next step by what the tools have said: run the tests, view, edit, run them again, finish once they pass. One
time in four it gives up instead of editing, so that samples of a task differ.
"""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pyarrow.parquet as pq
from coding_repository import Patch
from coding_tools import RunTests

from models.chat import chat_format
from models.tokenizer import ByteTokenizer
from rollout.finish import FinishTool
from rollout.workspace_tools import EditTool, ShellTool, ViewTool
from schemas.messages import Message, ToolCall

DATA = Path(__file__).parent / "data"
TOKENIZER = ByteTokenizer()
CHAT = chat_format(TOKENIZER, [tool().spec for tool in (ViewTool, EditTool, RunTests, ShellTool, FinishTool)])
TOOL = "<|tool|>"


@cache
def patches() -> dict[int, Patch]:
    """The patch of every issue, by its number."""
    rows = [row for file in sorted(DATA.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]
    return {int(re.search(r"#(\d+)", row["prompt"])[1]): Patch(**row["patch"]) for row in rows}  # type: ignore[index]


def script(stream: Sequence[int], seed: int, version: int) -> list[int]:
    """The next turn."""
    asked, *answers = TOKENIZER.decode(stream).split(TOOL)
    number = re.search(r"Issue #(\d+)", asked)
    if number is None or int(number[1]) not in patches():
        return CHAT.assistant(Message("assistant", "This issue is none that I know."))
    call = next_call(patches()[int(number[1])], answers, gives_up=seed % 4 == 0)
    return CHAT.assistant(Message("assistant", tool_calls=(call,)))


def next_call(patch: Patch, answers: Sequence[str], *, gives_up: bool) -> ToolCall:
    """What to do after these answers of tools."""
    if not answers:
        return ToolCall("run_tests", {})
    if len(answers) == 1:
        return ToolCall("view", {"path": patch.path})
    if not any("is written." in answer for answer in answers):
        edit = ToolCall("edit", {"path": patch.path, "old": patch.old, "new": patch.new})
        return ToolCall("finish", {"answer": "gave up"}) if gives_up else edit
    return ToolCall("finish", {"answer": "mended"}) if "\nOK" in answers[-1] else ToolCall("run_tests", {})
