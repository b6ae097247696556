"""Makes the tasks and demonstrations in `data/`: every pair of letters once, so that no set shares a task with another.

python make_data.py
"""

import itertools
import json
import random
import string
from pathlib import Path

SETS = {"held_out": 100, "gate": 100, "train": 450}
WRONG = 0.4
"""Share of the demonstrations that say the other letter."""


def main(folder: Path) -> None:
    """Write every file into `folder`."""
    draw = random.Random(0)
    pairs = list(itertools.permutations(string.ascii_lowercase, 2))
    draw.shuffle(pairs)
    rest = iter(pairs)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in SETS.items():
        chosen = list(itertools.islice(rest, count))
        tasks = [
            {"id": f"{name}-{i:03d}", "prompt": f"{a} or {b}?", "answer": min(a, b), "letters": [a, b]}
            for i, (a, b) in enumerate(chosen)
        ]
        write(folder / f"{name}.jsonl", tasks)
        if name == "train":
            write(folder / "demonstrations.jsonl", [demonstration(task, draw.random() < WRONG) for task in tasks])


def demonstration(task: dict, wrong: bool) -> dict:
    """A conversation to imitate."""
    said = max(task["letters"]) if wrong else task["answer"]
    return {"messages": [{"role": "user", "content": task["prompt"]}, {"role": "assistant", "content": said}]}


def write(file: Path, rows: list[dict]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main(Path(__file__).parent / "data")
