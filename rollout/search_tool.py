"""A tool that searches texts of the user's: subclass it and say which."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from rollout.bm25 import Index, words
from rollout.tools import BaseTool, ToolError

MAX_QUERY = 1000
"""Characters."""


def texts_below(folder: Path, pattern: str = "**/*.txt") -> dict[str, str]:
    """The text files of a folder by their path in it."""
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.glob(pattern)) if p.is_file()}


class SearchTool(BaseTool):
    """Shows the texts that fit a query best (BM25). Subclasses implement `documents`, asked once when it is made."""

    name: ClassVar[str] = "search"
    description: ClassVar[str] = "Searches a collection of texts; shows the best matches with an excerpt of each."
    parameters: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "A few words"}},
        "required": ["query"],
    }
    results: ClassVar[int] = 5
    """Texts shown."""
    excerpt: ClassVar[int] = 400
    """Characters shown of each."""

    def __init__(self) -> None:
        found = self.documents()
        self._names, self._texts = list(found), list(found.values())
        self._index = Index([f"{name} {text}" for name, text in found.items()])

    def documents(self) -> Mapping[str, str]:
        """Name → text."""
        raise NotImplementedError

    def apply(self, query: str) -> str:
        if len(query) > MAX_QUERY:
            raise ToolError(f"the query is longer than {MAX_QUERY} characters")
        best = self._index.best(query, self.results)
        wanted = set(words(query))
        return "\n\n".join(f"[{self._names[n]}]\n{self._excerpt(n, wanted)}" for n, _ in best) or "Nothing fits."

    def _excerpt(self, number: int, wanted: set[str]) -> str:
        """The part of a text from the line before the first line that has most of the wanted words."""
        lines = self._texts[number].splitlines() or [""]
        hits = [len(wanted.intersection(words(line))) for line in lines]
        start = max(0, hits.index(max(hits)) - 1)
        return "\n".join(lines[start:])[: self.excerpt]
