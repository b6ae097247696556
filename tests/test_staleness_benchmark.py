"""The staleness benchmark reports what its results file holds, goes on where it was, and says what is missing."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

HOME = Path(__file__).resolve().parents[1]
STEPS = 4


def _run(*argv: str) -> dict[str, Any]:
    command = [sys.executable, str(HOME / "benchmarks/staleness.py"), *argv, "--steps", str(STEPS), "--json"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HOME)
    return json.loads(found.stdout.splitlines()[-1])


def _line(
    bound: int, seed: int, *, correction: str = "none", concurrency: int = 128, reached: float = 1.0, learners: int = 1
) -> str:
    """A finished run whose reward rises to `reached` and whose samples are half an update stale."""
    each = {name: [0.5] * STEPS for name in ("off_policy/in_flight/mean", "off_policy/in_queue/mean")}
    each |= {"off_policy/mean": [0.5] * STEPS, "off_policy/max": [1.0] * STEPS, "reward": [0.3, 0.5, 0.8, reached]}
    each |= {"trainer/seconds": [9.0, 1.0, 1.0, 1.0], "trainer/waited_seconds": [9.0, 1.0, 1.0, None]}
    cell = f"s{bound}-{correction}-c{concurrency}-n{STEPS}-seed{seed}"
    setting = {"max_staleness": bound, "correction": correction, "concurrency": concurrency, "seed": seed}
    evaluated = {"candidate": {"success": reached, "low": 0.0, "high": 1.0, "n": 8}}
    line = {
        "cell": cell,
        "steps": STEPS,
        "load": [1.0, 2.0],
        "cores": 2,
        "learners": learners,
        "held_out": evaluated,
        "figures": each,
    }
    return json.dumps(setting | line) + "\n"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "staleness.jsonl"
    lines = [_line(0, 0), _line(0, 1), _line(1, 0, reached=0.6), _line(1, 1, reached=0.8, learners=2)]
    path.write_text("".join([*lines, _line(4, 0, concurrency=8, learners=2), '{"cell": "cut of']))
    return path


def test_rows_show_seeds_spread_and_what_stays_below_half_of_its_bound(results: Path, tmp_path: Path) -> None:
    document = tmp_path / "staleness.md"
    document.write_text(
        "# Ours\n\nBefore.\n\n<!-- written by benchmarks/staleness.py --report -->\n<!-- end -->\nAfter.\n"
    )
    found = _run("--results", str(results), "--report", str(document))
    zero, one, narrow = found["rows"]
    assert (zero["seeds"], one["seeds"], narrow["seeds"]) == ([0, 1], [0, 1], [0])
    assert one["last"] == pytest.approx([0.575, 0.55, 0.6]) and one["against_0"] == pytest.approx([-0.075, -0.1, -0.05])
    assert one["seconds"] == [5.0, 5.0, 5.0] and one["step_reached"] == [3, 3, 3] and narrow["seconds"] is None
    assert not one["below_half"] and narrow["below_half"]
    text = document.read_text()
    assert text.startswith("# Ours\n\nBefore.") and text.endswith("After.\n") and text.count("\\* below half") == 1
    assert f"`s8-none-c128-n{STEPS}` of seed 0, 1, 2" in text and f"`s1-none-c128-n{STEPS}` of seed 2;" in text
    assert list(found["meets"].values()) == [False]
    drawn = ElementTree.parse(tmp_path / "staleness.svg").getroot()
    assert len(drawn.findall("{*}polyline")) == 2 * 2 + 1, "seconds of a run that was cut off are not drawn"


def test_a_report_again_changes_nothing(results: Path, tmp_path: Path) -> None:
    document = tmp_path / "new.md"
    _run("--results", str(results), "--report", str(document))
    first = document.read_text()
    _run("--results", str(results), "--report", str(document))
    assert document.read_text() == first


def test_finished_cells_are_not_run_again(results: Path, tmp_path: Path) -> None:
    found = _run("--results", str(results), "--root", str(tmp_path / "root"), "--only", "s[01]-none-c128-*-seed[01]")
    assert list(found["meets"].values()) == [True]
    assert not (tmp_path / "root" / "store").exists()


def test_a_cut_off_last_line_is_replaced(results: Path) -> None:
    add = "import sys; from pathlib import Path; from staleness import append; append(Path(sys.argv[1]), {'cell': 'x'})"
    subprocess.run([sys.executable, "-c", add, str(results)], check=True, cwd=HOME / "benchmarks")
    assert [json.loads(x)["cell"] for x in results.read_text().splitlines()][-2:] == [f"s4-none-c8-n{STEPS}-seed0", "x"]
