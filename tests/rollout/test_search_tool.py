"""Search over texts: the order of BM25 by hand, excerpts, and queries that fit nothing."""

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from rollout.bm25 import Index
from rollout.search_tool import SearchTool, texts_below
from rollout.tools import ToolManager
from schemas.messages import ToolCall

TEXTS = {
    "rivers.txt": "Introduction.\nA mill needs water.\nThe headrace brings it to the wheel.\nIt never waits.",
    "bread.txt": "Flour, water and salt.\nBake it.",
    "empty.txt": "",
}


class Library(SearchTool):
    results = 2

    def documents(self) -> Mapping[str, str]:
        return TEXTS


async def searched(query: str) -> str:
    return (await ToolManager([Library()]).run(ToolCall("search", {"query": query}))).text


def test_scores_are_those_of_the_formula() -> None:
    index = Index(["a a b", "a c", "d"])
    weight = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    norms = [1.2 * (0.25 + 0.75 * n / 2) for n in (3, 2)]
    assert index.best("A", 5) == [
        (0, pytest.approx(weight * 2 * 2.2 / (2 + norms[0]))),
        (1, pytest.approx(weight * 2.2 / (1 + norms[1]))),
    ]
    assert index.best("a a", 5) == index.best("a", 5)
    assert [n for n, _ in index.best("a d", 1)] == [2]
    assert Index([]).best("a", 3) == Index([""]).best("a", 3) == []


async def test_the_best_texts_come_first_with_the_place_that_fits() -> None:
    found = await searched("water: headrace to the wheel")
    assert found.index("[rivers.txt]") < found.index("[bread.txt]")
    assert "The headrace brings it" in found and "Introduction" not in found


async def test_queries_that_fit_nothing_or_say_too_much() -> None:
    assert await searched("zebra") == await searched("?!") == "Nothing fits."
    assert (await searched("x" * 2000)).startswith("Error: ")


def test_texts_come_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.txt").write_text("x")
    (tmp_path / "c.md").write_text("y")
    assert texts_below(tmp_path) == {"a/b.txt": "x"}
