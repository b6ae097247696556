"""How good is each policy of a run, whatever its batches say? Cells of `staleness.py` with every second one evaluated.

A batch tells the success of the policy that sampled it, up to `rl.max_staleness` updates before. Each argument is
`correction,seed` and settings to add, such as `decoupled,0,rl.optimizer.learning_rate=1.5e-4`; the bound is 8. Each
finished run appends one line to the results.
"""

import argparse
from pathlib import Path

from measure import report
from staleness import Cell, lay_out
from staleness_report import WIDEST
from whole_runs import HOME, append, play_run, read

BOUND, STEPS, EVERY, HELD_OUT = 8, 24, 2, 128
READ = ("step", "reward", "off_policy/mean", "effective_sample_size", "mismatch_kl", "ratio_max", "clip_fraction")
READ += ("masked_fraction", "grad_norm", "entropy", "zero_advantage")


def play(text: str, root: Path, again: int) -> dict[str, object]:
    """The line of results of one run; `again` tells runs of the same settings apart."""
    correction, seed, *more = text.split(",")
    cell = Cell(BOUND, correction, WIDEST, int(seed), STEPS)
    name = f"{cell.name}-policies-{again}"
    kept = [setting for setting in cell.overrides() if not setting.startswith("rl.checkpoint_every")]
    evaluated = (f"rl.checkpoint_every={EVERY}", "evaluation.every=1")
    played = play_run(lay_out(root, HELD_OUT), root / "store", name, [*kept, *evaluated, *more])
    success = {
        int(e["checkpoint"].partition("@")[2] or 0): e["success"]
        for e in played.evaluations
        if e["setting"] == "evaluation.tasks"
    }
    return {"cell": text, "success": success, "figures": played.figures(READ)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", help="correction,seed[,setting...]; without any, what is known is printed")
    parser.add_argument(
        "--root", type=Path, default=HOME / ".headrace" / "staleness-policies", help="scratch: the runs"
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=HOME / "benchmarks" / "results" / "staleness_policies.jsonl",
        help="one line a run",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    for text in args.cells:
        append(args.results, play(text, args.root, len(read(args.results))))
    rows = [{"cell": line["cell"]} | line["success"] for line in read(args.results)]
    report(rows, {}, as_json=args.json)


if __name__ == "__main__":
    main()
