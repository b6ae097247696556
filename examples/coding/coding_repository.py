"""The repository of a task: its files, its visible tests, the hidden cases, and the patch that mends it.

A row of a task file has, beside `id`, `prompt` and `answer` (the patch as a diff, for readers):

* `files`: list of {path, text}: what the agent finds; the tests are those below `tests/`
* `setup`: the imports of the cases
* `cases`: list of {code, expected}: a program whose last line is an expression, and what it comes to (coding_probe.py)
* `patch`: {path, old, new}: one replacement of a text that occurs once
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.data import Task

TESTS = "tests/"


@dataclass(frozen=True)
class Case:
    """A hidden test: a program, and the outcome of its last line as JSON text."""

    code: str
    expected: str


@dataclass(frozen=True)
class Patch:
    """One replacement in one file."""

    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Repository:
    """What a task is made of."""

    files: Mapping[str, str]
    setup: str
    cases: tuple[Case, ...]
    patch: Patch
    visible: int
    """How many visible tests there are."""

    @property
    def tests(self) -> dict[str, str]:
        return {path: text for path, text in self.files.items() if is_test(path)}


def is_test(path: str) -> bool:
    """Whether a path belongs to the tests, which no agent's version of counts."""
    return path.startswith(TESTS)


def repository(task: Task) -> Repository:
    """The repository in a task's row, as JSONL or Parquet hold it."""
    row: Mapping[str, Any] = task.extra
    files = {file["path"]: file["text"] for file in row["files"]}
    visible = sum(text.count("    def test_") for path, text in files.items() if is_test(path))
    cases = tuple(Case(case["code"], case["expected"]) for case in row["cases"])
    return Repository(files, row["setup"], cases, Patch(**row["patch"]), visible)
