"""What an agent reads of a task: the issue, and cases as a unittest file."""

import ast
import random
import re
from collections.abc import Iterable, Sequence

from taskmaker.families import Example
from taskmaker.running import Ran

OPENINGS = (
    "A bug is in the package `{name}`.",
    "Something is wrong in `{name}`.",
    "A user of `{name}` reports a wrong result.",
    "`{name}` does not do what it should.",
)


def issue(name: str, example: Example, found: Ran, right: Ran, files: Iterable[str], rng: random.Random) -> str:
    """The issue text: one case, what it comes to, what it should come to, and the names of the files."""
    code = "\n".join(f"    {line}" for line in example.code.splitlines())
    names = ", ".join(path for path in files if not path.endswith("__init__.py"))
    return (
        f"{rng.choice(OPENINGS).format(name=name)} The last line of this program\n\n{code}\n\n{_says(found)}. "
        f"It should {_should(right)} ({example.title}). Find the bug and mend it; the tests in tests/ are right.\n\n"
        f"Files: {names}"
    )


def _says(found: Ran) -> str:
    return f"raises {found.raised}" if found.raised else f"gives {found.shown}"


def _should(right: Ran) -> str:
    return f"raise {right.raised}" if right.raised else f"give {right.shown}"


def test_file(setup: str, examples: Sequence[Example], right: Sequence[Ran]) -> str:
    """A unittest file with one test for each case."""
    tests = "\n".join(_test(e, r) for e, r in zip(examples, right, strict=True))
    return f"import unittest\n\n{setup}\n\n\nclass Tests(unittest.TestCase):\n{tests}"


def _test(example: Example, right: Ran) -> str:
    last = ast.parse(example.code).body[-1]
    lines = example.code.splitlines()
    before, expression = lines[: last.lineno - 1], "\n".join(lines[last.lineno - 1 :])
    if right.raised:
        end = [f"with self.assertRaises({right.raised}):", f"    {expression}"]
    else:
        end = [f"self.assertEqual({expression}, {right.shown})"]
    body = "\n".join(f"        {line}" for line in [*before, *end])
    return f"    def test_{re.sub(r'[^a-z0-9]+', '_', example.title.lower()).strip('_')}(self):\n{body}\n"
