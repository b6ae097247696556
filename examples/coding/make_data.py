"""Makes the example's task files: small repositories with one bug each, tests that see it, and the patch that mends it.

python examples/coding/make_data.py [FOLDER] [--seed N] [--per-family N]

Each family of `library` is a correct repository. Bugs are put in by `taskmaker.mutations`; one is kept where the
visible tests and the hidden cases fail with it and pass without it, all of which is tried. The same seed gives the
same files. Held-out and gate tasks come from repositories that no training task has.
The files `few_…` hold the first of them, for machines without an accelerator.
"""

import argparse
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from taskmaker.families import load, names
from taskmaker.tasks import family_tasks

SEED = 7
PER_FAMILY = 24
FEW = 2
HELD_OUT, GATE = ("graphs", "numerals"), ("intervals", "ledger")


def split_of(family: str) -> str:
    """The file that a family's tasks go to."""
    return "held_out" if family in HELD_OUT else "gate" if family in GATE else "train"


def main(folder: Path, seed: int = SEED, per_family: int = PER_FAMILY) -> None:
    """Write every file into `folder`: `per_family` training tasks at most of each family, half as many of others."""
    counts = {name: per_family if split_of(name) == "train" else (per_family + 1) // 2 for name in names()}
    found = [family_tasks(load(name), seed, count) for name, count in counts.items()]
    rows = [row for turn in range(per_family) for rows in found for row in rows[turn : turn + 1]]
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "held_out", "gate"):
        mine = [numbered(number, row) for number, row in enumerate(rows, 1) if split_of(row["family"]) == split]
        written(mine, folder / f"{split}.parquet")
        if split != "train":
            written(mine[:FEW], folder / f"few_{split}.parquet")


def written(rows: list[dict[str, Any]], file: Path) -> None:
    pq.write_table(pa.Table.from_pylist(rows), file, compression="zstd")
    print(f"{file.name}: {len(rows)} tasks of {len({row['family'] for row in rows})} repositories")


def numbered(number: int, row: dict[str, Any]) -> dict[str, Any]:
    """The row with its number, so that no two prompts are the same."""
    return {"id": f"{row['family']}-{number:04d}", **row, "prompt": f"Issue #{number}: {row['prompt']}"}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes the task files of the coding example.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent / "data")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--per-family", type=int, default=PER_FAMILY, help=f"tasks at most (default: {PER_FAMILY})")
    given = parser.parse_args()
    main(given.folder, given.seed, given.per_family)
