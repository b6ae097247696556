"""Whole runs of an example through the command, one after another, each a line of a results file once it is sound."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

HOME = Path(__file__).resolve().parents[1]
RUN_SECONDS = 3600


@dataclass(frozen=True)
class Played:
    """A finished run that `headrace audit verify` called sound."""

    folder: Path
    """Of its RL stage."""
    evaluations: list[dict[str, Any]]

    def held_out(self) -> dict[str, dict[str, Any]]:
        """Success on the held-out problems, by what was evaluated; at one temperature."""
        found = {e["name"]: e for e in self.evaluations if e["setting"] == "evaluation.tasks"}
        return {name: {k: e[k] for k in ("success", "low", "high", "n")} for name, e in found.items()}

    def learners(self) -> int:
        """How many learners made the steps: more than one where the run was cut off and went on."""
        return len(pq.read_table(self.folder / "metrics", columns=["learner"])["learner"].unique())

    def figures(self, names: Sequence[str]) -> dict[str, list[float | None]]:
        """Name → the figure of each step, four digits of it. `step` is one of the names."""
        columns = pq.read_table(self.folder / "metrics", columns=list(names)).sort_by("step").to_pydict()
        return {name: [v if v is None else float(f"{v:.4g}") for v in values] for name, values in columns.items()}


def play_run(configuration: Path, store: Path, name: str, overrides: Iterable[str]) -> Played:
    """Run it, or go on with it."""
    settings = [word for setting in overrides for word in ("--set", setting)]
    headrace("run", str(configuration), "--root", str(store), "--run", name, *settings)
    headrace("audit", "verify", name, "--root", str(store))
    status = json.loads(headrace("status", name, "--root", str(store), "--json"))
    return Played(store / "runs" / name / f"rl-{status['rl']['key']}", status["evaluations"])


def headrace(*argv: str) -> str:
    """What the command printed. SystemExit with its last line where it failed."""
    command = [sys.executable, "-P", "-c", "import headrace; headrace.main()", *argv]
    path = os.pathsep.join(filter(None, (str(HOME), os.environ.get("PYTHONPATH", ""))))
    environment = os.environ | {"PYTHONPATH": path}
    found = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, env=environment)
    if found.returncode:
        said = (found.stderr or found.stdout).strip().splitlines()
        sys.exit(f"headrace {' '.join(argv[:3])} ended with {found.returncode}: {said[-1] if said else 'no word'}")
    return found.stdout


def read(results: Path) -> list[dict[str, Any]]:
    """The finished runs. A last line that was cut off does not count."""
    text = results.read_text(encoding="utf-8") if results.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def append(results: Path, line: dict[str, Any]) -> None:
    """Add one run, in the place of a line that was cut off."""
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
