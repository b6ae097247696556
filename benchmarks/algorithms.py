"""Does every algorithm learn the calculator? The example, unchanged but for the case's own settings.

A case is what it sets of `rl.loss` and beside it. The runs of a seed share a store, so its warm-up is made once (with
adapters it is another one). Each finished run appends one line to the results; cases that have one are skipped.
`--report` writes the table into the document.
"""

import argparse
import fnmatch
import os
import time
from pathlib import Path
from typing import Any

from measure import report
from whole_runs import HOME, append, play_run, read

CONFIGURATION = HOME / "examples" / "calculator" / "calculator.toml"
AIM, EXCEPTIONS = 0.85, 2
READ = ("step", "reward", "success", "off_policy/mean", "mismatch_kl", "effective_sample_size", "clip_fraction")
READ += ("masked_fraction", "reference_kl", "entropy", "grad_norm", "trainer/update_seconds")
BEGIN, END = "<!-- written by benchmarks/algorithms.py --report -->", "<!-- end -->"
HEAD = (
    "`rl.loss` (and beside it)", "held-out success, by seed", "batches from step", "batches at steps 10, 20, 30"
)  # fmt: skip
WIDER = "rl.loss.clip_low=0.003 rl.loss.clip_high=0.004"

CASES: dict[str, str] = {
    name: f"rl.loss.algorithm={name}" for name in ("grpo", "dapo", "dr_grpo", "rloo", "cispo", "gspo", "gspo_token")
} | {
    "ppo": "rl.loss.algorithm=ppo rl.critic_optimizer.learning_rate=1e-3",
    "gspo-wider": f"rl.loss.algorithm=gspo {WIDER}",
    "gspo_token-wider": f"rl.loss.algorithm=gspo_token {WIDER}",
    "k1": "rl.loss={kl=\"k1_reward\",kl_coefficient=0.02}",
    "k2": "rl.loss={kl=\"k2\",kl_coefficient=0.04}",
    "k3": "rl.loss={kl=\"k3\",kl_coefficient=0.04}",
    "grpo-paper": "rl.loss={aggregation=\"sequence_mean\",kl=\"k3\",kl_coefficient=0.04}",
    "decoupled": "rl.loss.correction=decoupled",
    "truncated": "rl.loss.correction=truncated",
    "icepop": "rl.loss.correction=icepop",
    "sequence_mask": "rl.loss.correction=sequence_mask",
    "lora": "lora={rank=8,alpha=16} warm_up.1.optimizer.learning_rate=5e-3 rl.optimizer.learning_rate=2e-3",
}  # fmt: skip
"""Name → the settings, without spaces in any of them."""


def play(case: str, seed: int, root: Path) -> dict[str, Any]:
    """Run the case, or go on with it; the line of results."""
    began, load, name = time.time(), os.getloadavg()[0], f"{case}-seed{seed}"
    own = (f"seed={seed}", f"promotion.name={name}", "evaluation.temperatures=[1.0]", *CASES[case].split())
    played = play_run(CONFIGURATION, root / "store", name, own)
    return {
        "cell": name,
        "case": case,
        "seed": seed,
        "settings": CASES[case],
        "cores": os.cpu_count(),
        "load": [round(load, 2), round(os.getloadavg()[0], 2)],
        "run_seconds": round(time.time() - began, 1),
        "held_out": played.held_out(),
        "learners": played.learners(),
        "figures": played.figures(READ),
    }


def rows_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a case, in the order of the cases."""
    kept = {case: [line for line in lines if line["case"] == case] for case in CASES}
    return [_row(case, sorted(runs, key=lambda r: r["seed"])) for case, runs in kept.items() if runs]


def _row(case: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "case": case,
        "settings": runs[0]["settings"],
        "held_out": [run["held_out"]["candidate"]["success"] for run in runs],
        "warm_up": [run["held_out"]["warm-up"]["success"] for run in runs],
        "from_step": [_reached(run) for run in runs],
        "at": [[run["figures"]["success"][step - 1] for step in (10, 20, 30)] for run in runs],
    }


def _reached(run: dict[str, Any]) -> int | None:
    """The first step, counted from 1, whose batch had the success that is aimed at."""
    return next((i for i, share in enumerate(run["figures"]["success"], 1) if (share or 0) >= AIM), None)


def write_report(path: Path, lines: list[dict[str, Any]]) -> None:
    """Write what is between the marks of the document."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    table = [HEAD, ("---",) * len(HEAD), *map(_cells, rows_of(lines))]
    body = "\n".join(f"| {' | '.join(line)} |" for line in table)
    path.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        ", ".join(f"`{word}`" for word in row["settings"].replace("rl.loss.", "").replace("rl.loss=", "").split()),
        ", ".join(f"{100 * share:.1f} %" for share in row["held_out"]),
        ", ".join(str(step or "none") for step in row["from_step"]),
        "; ".join(", ".join("-" if share is None else f"{100 * share:.0f} %" for share in seed) for seed in row["at"]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=HOME / ".headrace" / "algorithms", help="scratch: the runs")
    parser.add_argument("--results", type=Path, default=HOME / "benchmarks" / "results" / "algorithms.jsonl")
    parser.add_argument("--seeds", type=int, default=1, help="seeds 0 to this, exclusive")
    parser.add_argument("--only", default="*", help="runs whose name matches, such as `g*-seed0`")
    parser.add_argument("--report", type=Path, metavar="FILE.md", help="run nothing; write what is known into the file")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    for seed, case in ((seed, case) for seed in range(args.seeds) for case in CASES):
        name = f"{case}-seed{seed}"
        new = name not in {line["cell"] for line in read(args.results)}
        if args.report is None and new and fnmatch.fnmatch(name, args.only):
            print(f"{name} ...", flush=True)
            append(args.results, play(case, seed, args.root))
    lines = read(args.results)
    if args.report is not None:
        write_report(args.report, lines)
    rows = rows_of(lines)
    short = [row["case"] for row in rows if min(row["held_out"]) < AIM]
    aim = (
        f"all {len(CASES)} cases measured ({len(rows)} are), at most {EXCEPTIONS} below {AIM:.0%} ({', '.join(short)})"
    )
    report(rows, {aim: len(rows) == len(CASES) and len(short) <= EXCEPTIONS}, as_json=args.json)


if __name__ == "__main__":
    main()
