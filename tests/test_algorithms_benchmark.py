"""The benchmark of algorithms has a case for each of them, and reports what its results file holds."""

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

from schemas.algorithms import PRESETS, Loss

HOME = Path(__file__).resolve().parents[1]
MARKS = "<!-- written by benchmarks/algorithms.py --report -->\n<!-- end -->"


def _line(case: str, seed: int, success: float) -> str:
    held_out = {"candidate": {"success": success}, "warm-up": {"success": 0.3}}
    share = [0.5] * 9 + [success] * 31
    line = {"cell": f"{case}-seed{seed}", "case": case, "seed": seed, "settings": f"rl.loss.algorithm={case}"}
    return json.dumps(line | {"held_out": held_out, "figures": {"success": share}}) + "\n"


def test_the_table_has_a_row_a_case_and_its_seeds(tmp_path: Path) -> None:
    results, document = tmp_path / "algorithms.jsonl", tmp_path / "algorithms.md"
    results.write_text(_line("gspo", 0, 0.8) + _line("grpo", 1, 0.99) + _line("grpo", 0, 0.98))
    document.write_text(f"Before.\n{MARKS}\nAfter.\n")
    argv = [sys.executable, str(HOME / "benchmarks/algorithms.py"), "--results", str(results), "--json"]
    done = subprocess.run([*argv, "--report", str(document)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert [row["case"] for row in found["rows"]] == ["grpo", "gspo"]
    ((aim, met),) = found["meets"].items()
    assert not met and "(2 are)" in aim and "below 85% (gspo)" in aim
    text = document.read_text()
    assert "| `algorithm=grpo` | 98.0 %, 99.0 % | 10, 10 | 98 %, 98 %, 98 %; 99 %, 99 %, 99 % |" in text
    assert "| `algorithm=gspo` | 80.0 % | none | 80 %, 80 %, 80 % |" in text
    assert text.startswith("Before.") and text.endswith("After.\n")


def test_every_algorithm_correction_and_divergence_has_a_case() -> None:
    script = "import json; from algorithms import CASES; print(json.dumps(CASES))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=HOME / "benchmarks"
    )
    settings = " ".join(json.loads(done.stdout).values())
    for name in (*PRESETS, *_choices("correction"), *_choices("kl")):
        assert name in settings, name


def _choices(field: str) -> list[str]:
    return [name for name in get_args(Loss.model_fields[field].annotation) if name != "none"]
