"""The library: each folder below `library` is a correct repository with the cases that tests are made of.

`cases.txt` holds paragraphs: first the imports, then cases, each a line `# what it shows` and a program whose last line
is an expression. What a case should come to is not written down: the correct repository says it.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from taskmaker.running import Ran, run_cases

LIBRARY = Path(__file__).parents[1] / "library"


@dataclass(frozen=True)
class Example:
    """A case: what it shows, and its program."""

    title: str
    code: str


@dataclass(frozen=True)
class Family:
    """A correct repository."""

    name: str
    files: dict[str, str]
    setup: str
    examples: tuple[Example, ...]

    @cached_property
    def right(self) -> tuple[Ran, ...]:
        """What every case comes to."""
        found = run_cases(self.files, self.setup, [e.code for e in self.examples])
        if found is None:
            raise ValueError(f"the cases of {self.name} do not end")
        return found


def names() -> list[str]:
    """Every family, in the order of their names."""
    return sorted(path.parent.name for path in LIBRARY.glob("*/cases.txt"))


def load(name: str) -> Family:
    """The family in a folder of the library."""
    folder = LIBRARY / name
    files = {
        str(path.relative_to(folder)): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.py"))
        if "__pycache__" not in path.parts
    }
    setup, *paragraphs = re.split(r"\n\n+", (folder / "cases.txt").read_text(encoding="utf-8").strip())
    examples = [Example(*paragraph.removeprefix("# ").split("\n", 1)) for paragraph in paragraphs]
    if len({e.title for e in examples}) < len(examples):
        raise ValueError(f"two cases of {name} have the same title")
    return Family(name, files, setup, tuple(examples))
