"""Questions in the shape of GSM8K: made from templates, and turned into problems with the tool calls that solve them.

A row is `{"question": …, "answer": …}`; the answer is a worked solution whose steps are marked `<<12+7=19>>` and whose
last line is `#### 19`.
"""

import random
import re
from collections.abc import Iterator
from typing import Any

from answers import read_number, same_answer

from rollout.calculator import calculate, written
from rollout.tools import ToolError

NAMES = ("Ada", "Ben", "Eva", "Ida", "Jon", "Kim", "Leo", "Mia", "Noa", "Tom")
THINGS = ("apples", "books", "cards", "coins", "eggs", "pens", "plums", "shells")
TEMPLATES = (
    ("{name} has {a} {things}, finds {b} more and gives {c} away. How many {things} are left?", ("{a}+{b}", "{0}-{c}")),
    ("{a} boxes hold {b} {things} each. {name} takes {c} out. How many {things} are left?", ("{a}*{b}", "{0}-{c}")),
    ("{name} earns {a} dollars an hour, {b} hours a day. How many dollars in {c} days?", ("{a}*{b}", "{0}*{c}")),
    ("{name} packs {a} {things} a day. How many {things} in {b} days?", ("{a}*{b}",)),
)  # fmt: skip
"""Each a question and its steps; `{0}` is what the first step gives."""
_STEP = re.compile(r"<<([^<>=]+)=([^<>=]+)>>")


def drawn_rows(rng: random.Random) -> Iterator[dict[str, str]]:
    """Rows made from the templates, without end."""
    while True:
        question, steps = rng.choice(TEMPLATES)
        values = {"a": rng.randint(11, 99), "b": rng.randint(2, 12), "c": rng.randint(2, 9)}
        said = {"name": rng.choice(NAMES), "things": rng.choice(THINGS), **values}
        results: list[str] = []
        lines = []
        for step in steps:
            expression = step.format(*results, **values)
            results.append(written(calculate(expression)))
            lines.append(f"{expression} = <<{expression}={results[-1]}>>{results[-1]}")
        yield {"question": question.format(**said), "answer": "\n".join([*lines, f"#### {results[-1]}"])}


def problem(row: dict[str, str]) -> dict[str, Any]:
    """A row as a task without its `id`. ValueError where the row has no number behind `####`."""
    solution = row["answer"]
    _, mark, final = solution.rpartition("####")
    if not mark or read_number(final) is None:
        raise ValueError(f"the answer of {row['question'][:60]!r} does not end in `#### number`")
    calls = [["calculator", step] for step in steps(solution)]
    return {"prompt": row["question"].strip(), "answer": final.strip(), "dataset": "questions", "calls": calls}


def steps(solution: str) -> list[str]:
    """The marked steps of a solution that the calculator can take and that give what they say."""
    return [step.strip() for step, result in _STEP.findall(solution) if _gives(step, result)]


def _gives(step: str, result: str) -> bool:
    try:
        return same_answer(written(calculate(step)), result)
    except ToolError:
        return False
