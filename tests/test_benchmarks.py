"""The benchmarks run, and say what they say in the agreed form."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("name", "small"),
    [
        ("ledger", ("--steps", "4", "--rows", "8", "--every", "2", "--rounds", "1")),
        ("shards", ("--rows", "2", "--rounds", "1")),
        ("orchestrator", ("--episodes", "8", "--many", "16", "--seconds", "0.05", "--rounds", "1")),
        pytest.param("learner", ("--only", "packing", "--rounds", "1"), marks=pytest.mark.slow),
        pytest.param("engine", ("--size", "0.8m", "--flight", "2", "--rounds", "1"), marks=pytest.mark.slow),
    ],
)
def test_a_benchmark_ends_with_one_json_object(name: str, small: tuple[str, ...]) -> None:
    argv = [sys.executable, str(HOME / "benchmarks" / f"{name}.py"), *small, "--json"]
    found = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=HOME)
    last = json.loads(found.stdout.splitlines()[-1])
    assert set(last) == {"rows", "meets"}
    assert last["rows"] and all(isinstance(met, bool) for met in last["meets"].values())


@pytest.mark.parametrize("path", sorted((HOME / "benchmarks/results").glob("*.json")), ids=lambda p: p.name)
def test_recorded_results_have_that_form(path: Path) -> None:
    assert {"rows", "meets"} <= set(json.loads(path.read_text(encoding="utf-8")))
