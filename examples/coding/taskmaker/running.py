"""Cases and visible tests run as they are run when an agent is scored, but in plain processes: what runs is ours."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coding_judge import PROBE, PYTHON, UNITTEST

CPU_SECONDS = 2
"""A bug that makes cases run for longer is not kept; they take some milliseconds."""
SECONDS = 120


@dataclass(frozen=True)
class Ran:
    """What a case came to: as JSON text, and as Python shows it."""

    outcome: str
    shown: str

    @property
    def raised(self) -> str:
        """The exception's name, or ""."""
        kind, value = json.loads(self.outcome)
        return value if kind == "raises" else ""


def run_cases(files: Mapping[str, str], setup: str, cases: Sequence[str]) -> tuple[Ran, ...] | None:
    """What the cases come to in these files; None where they do not end in time or end the process."""
    request = {"folder": ".", "setup": setup, "cases": list(cases), "cpu_seconds": CPU_SECONDS, "shown": True}
    with _written(files) as folder:
        done = _run([PROBE], folder, json.dumps(request))
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return tuple(Ran(json.dumps(outcome), text) for _, outcome, text in rows) if len(rows) == len(cases) else None


def tests_pass(files: Mapping[str, str]) -> bool:
    """Whether the tests among the files pass."""
    with _written(files) as folder:
        return _run([UNITTEST], folder, "").returncode == 0


def _written(files: Mapping[str, str]) -> "tempfile.TemporaryDirectory[str]":
    made = tempfile.TemporaryDirectory()
    for path, text in files.items():
        file = Path(made.name, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return made


def _run(program: Sequence[str], folder: str, stdin: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *PYTHON[1:-1], "-B", PYTHON[-1], *program]
    return subprocess.run(command, cwd=folder, input=stdin, capture_output=True, text=True, timeout=SECONDS)
