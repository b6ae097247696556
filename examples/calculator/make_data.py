"""Makes the example's data files: arithmetic on two-digit numbers, to be answered through the calculator tool.

python examples/calculator/make_data.py [FOLDER]

copying.parquet teaches how to call the tool and to copy its result; in habit.parquet most demonstrations give up with
`?`, so that using the tool is a habit that reinforcement still has to build. No problem stands in two files.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SEED = 20
SIZES = {"held_out": 500, "gate": 300, "train": 1024, "copying": 8000, "habit": 2560}
GIVE_UP = 0.62
"""Share of the habit's demonstrations that give up."""
TOOL = {
    "name": "calculator",
    "description": "Evaluates an arithmetic expression.",
    "parameters": {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
}


def problems(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Distinct problems and their answers, without end (there are 24,300)."""
    seen = set()
    while True:
        a, b, op = rng.randint(10, 99), rng.randint(10, 99), rng.choice("+-*")
        text = f"{a}{op}{b}"
        if text not in seen:
            seen.add(text)
            yield text, str({"+": a + b, "-": a - b, "*": a * b}[op])


def demonstration(problem: str, answer: str, give_up: bool) -> dict[str, str]:
    """One row: the messages and tools as JSON text."""
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": problem}}}
    worked = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "calculator", "content": answer},
        {"role": "assistant", "content": answer},
    ]
    told = [{"role": "assistant", "content": "?"}] if give_up else worked
    messages = [{"role": "user", "content": f"{problem}=?"}, *told]
    return {"messages": json.dumps(messages), "tools": json.dumps([TOOL])}


def main(folder: Path) -> None:
    """Write every file into `folder`."""
    rng = random.Random(SEED)
    source = problems(rng)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("held_out", "gate", "train"):
        rows = [(f"{name}-{i:04d}", *next(source)) for i in range(SIZES[name])]
        lines = [json.dumps({"id": i, "prompt": f"{p}=?", "answer": a}) for i, p, a in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    for name, share in (("copying", 0.0), ("habit", GIVE_UP)):
        rows = [demonstration(*next(source), give_up=rng.random() < share) for _ in range(SIZES[name])]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet", compression="zstd")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data")
