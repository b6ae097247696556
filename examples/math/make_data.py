"""Makes the example's data files from generators of `reasoning-gym` and from questions in the shape of GSM8K.

    python examples/math/make_data.py [FOLDER] [--questions FILE]

`--questions` takes your own JSONL rows (`question`, `answer` with `#### number`) in the place of all other problems and
needs no package; the rest needs the extra `math`. No problem stands in two files.
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from answers import same_answer
from environment import ARGUMENTS
from questions import drawn_rows, problem

from rollout.calculator import CalculatorTool, calculate, written
from rollout.workspace_tools import PythonTool

SEED = 20
SHARES = {"held_out": 300, "gate": 200, "train": 1024, "skill": 6000, "habit": 1500}
"""Problems of each file; of your own questions as many as the same shares make."""
GUESSES = {"skill": 0.0, "habit": 0.75}
"""Share of the demonstrations that guess at once and wrongly."""
GENERATORS = {
    "chain_sum": {"min_terms": 2, "max_terms": 4, "min_digits": 1, "max_digits": 2},
    "simple_equations": {"min_terms": 2, "max_terms": 3, "min_value": 2, "max_value": 60},
    "gcd": {"min_value": 2, "max_value": 400},
}
WEIGHTS = {"questions": 0.35, "chain_sum": 0.3, "simple_equations": 0.25, "gcd": 0.1}
_EQUATION = re.compile(
    r"(?:(?P<first>\d+) - )?(?P<factor>\d+)\*[a-z](?: (?P<sign>[-+]) (?P<last>\d+))? = (?P<total>-?\d+)$"
)
Problem = dict[str, Any]


def calls_of(generator: str, question: str) -> list[list[str]]:
    """The tool calls that solve a problem of a generator; empty where its form is not known."""
    if generator == "chain_sum":
        return [["calculator", question.partition(": ")[2].removesuffix(" =").replace(" ", "")]]
    if generator == "simple_equations" and (found := _EQUATION.search(question)):
        return [["calculator", _solved(**found.groupdict())]]
    if generator == "gcd":
        numbers = question.partition(": ")[2].partition(".")[0].replace(" ", "")
        return [["python", f"from math import*;print(gcd({numbers}))"]]
    return []


def _solved(first: str | None, factor: str, sign: str | None, last: str | None, total: str) -> str:
    """The unknown of `first - factor*x = total` or `factor*x sign last = total`."""
    if first:
        return f"({first}-{total})/{factor}" if not total.startswith("-") else f"({first}+{total[1:]})/{factor}"
    return f"({total}{'-' if sign == '+' else '+'}{last})/{factor}" if sign else f"{total}/{factor}"


def generated(name: str) -> Iterator[Problem]:
    """Problems of a generator that its calls solve."""
    from reasoning_gym import create_dataset

    for item in create_dataset(name, seed=SEED, size=10**6, **GENERATORS[name]):
        calls = calls_of(name, item["question"])
        if name == "gcd" or (calls and same_answer(written(calculate(calls[0][1])), item["answer"])):
            yield {"prompt": item["question"], "answer": item["answer"], "dataset": name, "calls": calls}


def problems(rng: random.Random) -> Iterator[Problem]:
    """Distinct problems of all kinds, without end."""
    sources = {name: generated(name) for name in GENERATORS}
    sources["questions"] = (problem(row) for row in drawn_rows(rng))
    seen = set()
    while True:
        found = next(sources[rng.choices([*WEIGHTS], [*WEIGHTS.values()])[0]])
        if found["prompt"] not in seen:
            seen.add(found["prompt"])
            yield found


def own_problems(file: Path, rng: random.Random) -> list[Problem]:
    """The distinct questions of a file, shuffled."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    distinct = list({found["prompt"]: found for found in map(problem, rows)}.values())
    rng.shuffle(distinct)
    return distinct


def demonstration(found: Problem, rng: random.Random, guess: bool) -> dict[str, str]:
    """A conversation that solves a problem by its calls, or guesses; messages and tools as JSON text."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": found["prompt"]}]
    for tool, text in [] if guess else found["calls"]:
        call = {"type": "function", "function": {"name": tool, "arguments": {ARGUMENTS[tool]: text}}}
        result = written(calculate(text)) if tool == "calculator" else found["answer"]
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": tool, "content": result},
        ]
    messages.append({"role": "assistant", "content": str(rng.randint(1, 999)) if guess else found["answer"]})
    offered = [
        {"name": t.name, "description": t.description, "parameters": t.parameters} for t in (CalculatorTool, PythonTool)
    ]
    return {"messages": json.dumps(messages), "tools": json.dumps(offered)}


def main(folder: Path, questions: Path | None = None, shares: dict[str, int] = SHARES) -> None:
    """Write every file into `folder`; smaller shares make smaller files."""
    rng = random.Random(SEED)
    folder.mkdir(parents=True, exist_ok=True)
    if questions:
        own = own_problems(questions, rng)
        shares = {name: len(own) * share // sum(SHARES.values()) for name, share in SHARES.items()}
        source = iter(own)
    else:
        source = problems(rng)
    for name, count in shares.items():
        rows = [next(source) for _ in range(count)]
        if name in GUESSES:
            told = [demonstration(row, rng, guess=rng.random() < GUESSES[name]) for row in rows]
            pq.write_table(pa.Table.from_pylist(told), folder / f"{name}.parquet", compression="zstd")
        else:
            lines = [json.dumps({"id": f"{name}-{i:04d}", **row}) for i, row in enumerate(rows)]
            (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes the data files of the math example.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent / "data")
    parser.add_argument("--questions", type=Path, help="your own JSONL file in the shape of GSM8K")
    given = parser.parse_args()
    try:
        main(given.folder, given.questions)
    except ImportError as error:
        sys.exit(f"a package is missing ({error}): pip install '.[math]'")
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"the questions can't be used: {error}")
