"""Makes the example's task files: sums and products of one-digit numbers by `reasoning-gym`'s generators.

    python examples/smollm2/make_data.py [FOLDER]

Easy on purpose: a model of 135 M parameters solves a part of them, so that there is something to reinforce. No problem
stands in two files. Needs the extra `smollm2`.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

SEED = 20
SIZES = {"held_out": 20, "gate": 20, "train": 160}
SMALL = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
GENERATORS = {"chain_sum": SMALL, "products": SMALL}
DRAWS = 2000
"""Problems drawn from each generator; more than enough to meet most of the few hundred that there are."""


def problems() -> list[dict[str, Any]]:
    """Distinct problems of all generators, shuffled."""
    try:
        from reasoning_gym import create_dataset
    except ImportError:
        sys.exit("the package reasoning-gym is missing: pip install '.[smollm2]'")
    drawn = [
        {"prompt": item["question"], "answer": item["answer"], "dataset": name, "metadata": item["metadata"]}
        for name, settings in GENERATORS.items()
        for item in create_dataset(name, seed=SEED, size=DRAWS, **settings)
    ]
    distinct = list({row["prompt"]: row for row in drawn}.values())
    random.Random(SEED).shuffle(distinct)
    return distinct


def main(folder: Path) -> None:
    """Write every file into `folder`."""
    source = iter(problems())
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in SIZES.items():
        lines = [json.dumps({"id": f"{name}-{i:04d}", **next(source)}) for i in range(size)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data")
