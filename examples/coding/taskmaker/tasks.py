"""From a correct repository to tasks: a bug, an issue text, visible tests that see it, hidden cases that do too."""

import difflib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from taskmaker.families import Example, Family
from taskmaker.mutations import Mutation, mutations
from taskmaker.rendering import issue, test_file
from taskmaker.running import Ran, run_cases, tests_pass

SHARE = 0.4
"""Of the cases are visible tests."""


@dataclass(frozen=True)
class Bug:
    """A mutated file of a family, and what every case then comes to."""

    kind: str
    path: str
    text: str
    found: tuple[Ran, ...]

    def failing(self, family: Family) -> list[int]:
        return [i for i, (f, r) in enumerate(zip(self.found, family.right, strict=True)) if f.outcome != r.outcome]


def family_tasks(family: Family, seed: int, count: int) -> list[dict[str, Any]]:
    """The first `count` tasks of a family (fewer where it has no more); more of them begin with the same ones."""
    rng = random.Random(f"{seed}/{family.name}")
    rows: list[dict[str, Any]] = []
    for bug in _bugs(family, rng):
        row = _task(family, bug, random.Random(f"{seed}/{family.name}/{len(rows)}"))
        if row is not None:
            rows.append(row)
        if len(rows) == count:
            break
    return rows


def _bugs(family: Family, rng: random.Random) -> Iterator[Bug]:
    """Bugs that end and that at least two cases see, the kinds in turn."""
    by_kind: dict[str, list[tuple[str, Mutation]]] = {}
    for path, text in family.files.items():
        for mutation in mutations(text):
            by_kind.setdefault(mutation.kind, []).append((path, mutation))
    for found in by_kind.values():
        rng.shuffle(found)
    for path, mutation in (one for turn in zip_longest(*by_kind.values()) for one in turn if one):
        text = mutation.applied(family.files[path])
        found = run_cases({**family.files, path: text}, family.setup, [e.code for e in family.examples])
        bug = Bug(mutation.kind, path, text, found or ())
        if found is not None and len(bug.failing(family)) >= 2:
            yield bug


def _task(family: Family, bug: Bug, rng: random.Random) -> dict[str, Any] | None:
    """A row of a task file; None where the visible tests do not tell the bug from the mended repository."""
    failing = bug.failing(family)
    shown = rng.choice(failing)
    others = [i for i in range(len(family.examples)) if i != shown]
    chosen = sorted([shown, *rng.sample(others, round(SHARE * len(others)))])
    if all(i in chosen for i in failing):  # the hidden cases must see the bug beyond the visible ones
        chosen.remove(next(i for i in failing if i != shown))
    examples: list[Example] = [family.examples[i] for i in chosen]
    tests = {
        "tests/__init__.py": "",
        f"tests/test_{family.name}.py": test_file(family.setup, examples, [family.right[i] for i in chosen]),
    }
    broken = {**family.files, bug.path: bug.text}
    if tests_pass({**broken, **tests}) or not tests_pass({**family.files, **tests}):
        return None
    return {
        "prompt": issue(
            family.name, family.examples[shown], bug.found[shown], family.right[shown], {**broken, **tests}, rng
        ),
        "answer": _diff(bug.path, bug.text, family.files[bug.path]),
        "family": family.name,
        "bug": bug.kind,
        "files": [{"path": path, "text": text} for path, text in {**broken, **tests}.items()],
        "setup": family.setup,
        "cases": [{"code": e.code, "expected": r.outcome} for e, r in zip(family.examples, family.right, strict=True)],
        "patch": {"path": bug.path, **_replacement(bug.text, family.files[bug.path])},
    }


def _diff(path: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), f"a/{path}", f"b/{path}", n=1, lineterm="")
    return "\n".join(lines)


def _replacement(old: str, new: str) -> dict[str, str]:
    """The whole lines that differ, with as many around them as make the old text occur once."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    top = next(i for i, (a, b) in enumerate(zip_longest(before, after)) if a != b)
    most = min(len(before), len(after)) - top
    pairs = zip(reversed(before), reversed(after), strict=False)
    tail = next((i for i, (a, b) in enumerate(pairs) if a != b or i == most), most)
    while True:
        text = "".join(before[top : len(before) - tail])
        if text and old.count(text) == 1:
            return {"old": text, "new": "".join(after[top : len(after) - tail])}
        top, tail = max(0, top - 1), max(0, tail - 1)
