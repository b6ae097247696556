"""How stale is what RL trains on, and does reward hold up as staleness and concurrency grow? On the calculator.

A cell is one run: a bound on staleness, a correction, a concurrency, a seed. The runs share a store, so the warm-up of
a seed is made once. Each finished run appends one line to the results; cells that have one are skipped, and a run that
was cut off goes on where it was. `--report` writes the table, the plots and what is missing into the document.
"""

import argparse
import fnmatch
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from measure import report
from slow_tool import SECONDS
from staleness_report import WIDEST, rows_of, write_report
from whole_runs import append, play_run, read

HOME = Path(__file__).resolve().parents[1]
BOUNDS, CORRECTIONS = (0, 1, 4, 8), ("none", "decoupled")
NARROWER, BOUND_OF_NARROWER = (32, 8), 4
WORKERS = 2
GATE_TASKS = 8
READ = ("step", "reward", "off_policy/mean", "off_policy/max", "off_policy/in_flight/mean", "off_policy/in_queue/mean")
READ += ("effective_sample_size", "mismatch_kl", "clip_fraction", "trainer/seconds", "trainer/waited_seconds")


@dataclass(frozen=True)
class Cell:
    """One run: `concurrency` episodes in flight over all workers."""

    max_staleness: int
    correction: str
    concurrency: int
    seed: int
    steps: int

    @property
    def name(self) -> str:
        return f"s{self.max_staleness}-{self.correction}-c{self.concurrency}-n{self.steps}-seed{self.seed}"

    def overrides(self) -> Iterator[str]:
        """What it changes of the example. The learning rate's schedule stays the example's, of 40 steps."""
        each = self.concurrency // WORKERS
        yield from (f"seed={self.seed}", f"promotion.name={self.name}", "evaluation.temperatures=[1.0]")
        yield from (f"rollout.workers={WORKERS}", f"rollout.max_concurrency={each}", f"rollout.slots={each}")
        yield from (f"rl.max_staleness={self.max_staleness}", f"rl.loss.correction={self.correction}")
        yield from (f"rl.steps={self.steps}", f"rl.checkpoint_every={self.steps}")
        yield 'environment.tools=["slow_tool:SlowCalculator"]'


def cells(seeds: list[int], steps: int) -> list[Cell]:
    """The most informative first: a seed's whole grid before the next seed's, narrow runs, which last longest, last."""
    grid = list(product(BOUNDS, CORRECTIONS))
    wide, narrow = NARROWER
    found = []
    for seed in seeds:
        found += [Cell(bound, correction, WIDEST, seed, steps) for bound, correction in grid]
        found.append(Cell(BOUND_OF_NARROWER, "none", wide, seed, steps))
    found += [Cell(bound, "truncated", WIDEST, seed, steps) for seed in seeds for bound in BOUNDS if bound]
    return found + [Cell(BOUND_OF_NARROWER, "none", narrow, seed, steps) for seed in seeds]


def lay_out(root: Path, held_out: int) -> Path:
    """The example with the slow tool beside it and fewer problems to evaluate and to decide with."""
    folder = root / f"example-{held_out}"
    shutil.copytree(HOME / "examples" / "calculator", folder, dirs_exist_ok=True)
    shutil.copy(HOME / "benchmarks" / "slow_tool.py", folder)
    for name, kept in (("held_out", held_out), ("gate", GATE_TASKS)):
        path = folder / "data" / f"{name}.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept]))
    return folder / "calculator.toml"


def play(cell: Cell, configuration: Path, root: Path) -> dict[str, Any]:
    """Run the cell, or go on with it; the line of results."""
    began, load = time.time(), os.getloadavg()[0]
    played = play_run(configuration, root / "store", cell.name, cell.overrides())
    return asdict(cell) | {
        "cell": cell.name,
        "tool_seconds": SECONDS,
        "cores": os.cpu_count(),
        "load": [round(load, 2), round(os.getloadavg()[0], 2)],
        "run_seconds": round(time.time() - began, 1),
        "held_out": played.held_out(),
        "learners": played.learners(),
        "figures": played.figures(READ),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--root", type=Path, default=HOME / ".headrace" / "staleness", help="scratch: runs and warm-ups"
    )
    parser.add_argument("--results", type=Path, default=HOME / "benchmarks" / "results" / "staleness.jsonl")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0 to this, exclusive")
    parser.add_argument("--steps", type=int, default=24, help="RL steps of a run")
    parser.add_argument("--held-out", type=int, default=128, help="held-out problems of the evaluations")
    parser.add_argument("--only", default="*", help="cells whose name matches, such as `s4-*-seed0`")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after so long")
    parser.add_argument("--report", type=Path, metavar="FILE.md", help="run nothing; write what is known into the file")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    return parser.parse_args()


def main() -> None:
    args = _arguments()
    wanted = [c for c in cells(list(range(args.seeds)), args.steps) if fnmatch.fnmatch(c.name, args.only)]
    if args.report is None:
        _run_missing(wanted, args)
    lines = read(args.results)
    done = {line["cell"] for line in lines}
    missing = [c.name for c in wanted if c.name not in done]
    if args.report is not None:
        write_report(args.report, lines, missing)
    meets = {f"all {len(wanted)} runs are finished ({len(missing)} are not)": not missing}
    report(rows_of(lines), meets, as_json=args.json)


def _run_missing(wanted: list[Cell], args: argparse.Namespace) -> None:
    deadline = time.monotonic() + 60 * args.minutes
    configuration = lay_out(args.root, args.held_out)
    for cell in wanted:
        if time.monotonic() > deadline:
            return
        if cell.name not in {line["cell"] for line in read(args.results)}:
            print(f"{cell.name} ...", flush=True)
            append(args.results, play(cell, configuration, args.root))


if __name__ == "__main__":
    main()
