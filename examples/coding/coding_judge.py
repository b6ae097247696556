"""Whether a repository is mended, found out where the agent has never been.

The agent's sources are copied beside the task's own tests into a fresh folder of the sandbox. The hidden cases run
there, but what they should come to never enters the sandbox: outcomes are compared here, in the worker.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coding_repository import Case, Repository, is_test

from rollout.hooks import call
from rollout.sandbox import Limits, Sandbox, SandboxResult
from rollout.tools import ToolError
from rollout.workspace import Workspace
from rollout.workspace_files import read_text

PROBE = (Path(__file__).parent / "coding_probe.py").read_text(encoding="utf-8")
PYTHON = ("python3", "-I", "-S", "-c")
"""No folder of the repository is looked in before the library's own, and no start-up file is run."""
UNITTEST = (
    "import sys, unittest; sys.path.append('.');"
    "unittest.main(None, argv=['unittest', 'discover', '-s', 'tests', '-t', '.'])"
)
LIMITS = Limits(seconds=20, output_bytes=256 * 2**10)
CPU_SECONDS = 5
MOST_FILES, LARGEST_FILE = 200, 256 * 2**10


@dataclass(frozen=True)
class Verdict:
    """What was found."""

    hidden: float
    """Share of the hidden cases that came to what they should."""
    visible: bool
    """Whether the task's visible tests say that they pass. They run in one process with the code under test, which
    could make them say so."""

    @property
    def solved(self) -> bool:
        return self.hidden == 1.0


async def judge(sandbox: Sandbox, task: Repository, folder: Path) -> Verdict:
    """Judge the sources that an agent has left in `folder`."""
    files = {**await call(sources, folder), **task.tests}
    fresh = Workspace(sandbox, LIMITS)
    await call(fresh.open, files)
    try:
        request = {
            "folder": ".", "setup": task.setup, "cases": [case.code for case in task.cases],
            "cpu_seconds": CPU_SECONDS, "shown": False,
        }  # fmt: skip
        cases = await fresh.run([*PYTHON, PROBE], stdin=json.dumps(request).encode())
        ended_well = cases.exit_status == 0 and not cases.ended  # else the tests would only hang or fall again
        says_so = ended_well and visible(await fresh.run([*PYTHON, UNITTEST]), task.visible)
    finally:
        await fresh.close()
    return Verdict(passed(cases, task.cases) / len(task.cases), says_so)


def sources(folder: Path) -> dict[str, str]:
    """The Python files below a folder that are not tests; what is no plain text file of a sensible size is left out."""
    found: dict[str, str] = {}
    for path in _python_files(folder):
        try:
            found[path] = read_text(folder, path, LARGEST_FILE)
        except ToolError:
            continue
        if len(found) == MOST_FILES:
            break
    return found


def _python_files(folder: Path) -> Iterator[str]:
    for base, _, names in os.walk(folder):
        for name in sorted(names):
            path = os.path.relpath(os.path.join(base, name), folder)
            if name.endswith(".py") and not is_test(path):
                yield path


def passed(result: SandboxResult, cases: tuple[Case, ...]) -> int:
    """How many cases came to what they should; one that is answered twice did not."""
    said: dict[int, list[str]] = {}
    for line in result.stdout.splitlines():
        try:
            number, outcome, _ = json.loads(line)
            said.setdefault(int(number), []).append(json.dumps(outcome))
        except (ValueError, TypeError, OverflowError, RecursionError):
            continue  # not a line of the probe's
    return sum(said.get(number) == [case.expected] for number, case in enumerate(cases))


def visible(result: SandboxResult, count: int) -> bool:
    """Whether unittest says that it ran all tests, and that all passed."""
    ran = re.search(r"^Ran (\d+) tests? in .*\n\nOK$", result.stderr, re.MULTILINE)
    return result.exit_status == 0 and ran is not None and int(ran[1]) == count
