"""The table of `docs/faults.md`: its tests exist, and each fails where what keeps its fault out is taken away."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.defences import DEFENCES, Defence

from schemas.version import ROOMS

HOME = Path(__file__).parents[2]
TABLE = re.compile(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
FAILED = 1
"""pytest's exit code where a test failed (not: was not found, could not be collected)."""


def rows() -> dict[int, list[str]]:
    """Row → the tests that it names, `path::name`."""
    table = (HOME / "docs" / "faults.md").read_text(encoding="utf-8")
    return {int(row[1]): re.findall(r"`(tests/[\w/]+\.py::\w+)`", row[4]) for row in TABLE.finditer(table)}


def functions_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {f.name for f in tree.body if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_fault_has_tests_that_exist() -> None:
    found = rows()
    assert len(found) >= 29 and all(found.values())
    named = [name.split("::") for names in found.values() for name in names]
    assert [f"{path}::{name}" for path, name in named if name not in functions_in(HOME / path)] == []


def test_every_test_of_the_table_has_its_defence() -> None:
    """But for whole runs with real weights, which take minutes: the smaller tests of their rows are tried."""
    named = {(row, name) for row, names in rows().items() for name in names if "/acceptance/" not in name}
    assert named == {(d.row, d.test) for d in DEFENCES}


@pytest.mark.parametrize("defence", DEFENCES, ids=lambda d: f"{d.row}-{d.test.partition('::')[2]}")
def test_a_defence_stands_once_where_it_is_looked_for(defence: Defence) -> None:
    assert (HOME / defence.file).read_text(encoding="utf-8").count(defence.text) == 1


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code and its tests, to be edited."""
    place = tmp_path_factory.mktemp("edited")
    for room in (*ROOMS, "tests", "examples"):
        shutil.copytree(HOME / room, place / room, ignore=shutil.ignore_patterns("__pycache__", "*.parquet"))
    for file in ("pyproject.toml", "headrace.py"):
        shutil.copy(HOME / file, place / file)
    return place


@pytest.mark.slow
@pytest.mark.parametrize("defence", DEFENCES, ids=lambda d: f"{d.row}-{d.test.partition('::')[2]}")
def test_without_its_defence_the_test_fails(copy: Path, defence: Defence) -> None:
    """A run that would go on for ever is ended by its timeout, which is a failure too."""
    edited = copy / defence.file
    whole = edited.read_text(encoding="utf-8")
    edited.write_text(whole.replace(defence.text, defence.edited), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "120", defence.test]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=500)
    finally:
        edited.write_text(whole, encoding="utf-8")
    assert done.returncode == FAILED, f"{defence.test} does not notice: {done.stdout[-2000:]}{done.stderr[-500:]}"
