"""A frozen lake: its map as text, what a move does, shortest paths, and maps that can be crossed.

The letters of FrozenLake: `F` ice, `H` a hole, `G` the goal; `A` is where the agent stands. Nothing slips. Moves are
`l`, `r`, `u`, `d`; one against the edge leaves the agent where it is.
"""

import random
from collections import deque
from dataclasses import dataclass, replace
from enum import Enum

MOVES = {"l": (0, -1), "r": (0, 1), "u": (-1, 0), "d": (1, 0)}
"""Row and column that each move adds."""
Cell = tuple[int, int]


class Outcome(Enum):
    """Where a move ended."""

    ICE = "ice"
    HOLE = "hole"
    GOAL = "goal"


@dataclass(frozen=True)
class Lake:
    """The rows of a map without its agent, and the cell (row, column) where the agent stands."""

    rows: tuple[str, ...]
    agent: Cell

    def moved(self, move: str) -> tuple["Lake", Outcome]:
        """The lake after a move, and where it led. KeyError for what is no move."""
        row, column = (a + b for a, b in zip(self.agent, MOVES[move], strict=True))
        inside = 0 <= row < len(self.rows) and 0 <= column < len(self.rows[0])
        after = replace(self, agent=(row, column)) if inside else self
        return after, after.outcome()

    def outcome(self) -> Outcome:
        """What the agent stands on."""
        under = self.rows[self.agent[0]][self.agent[1]]
        return {"H": Outcome.HOLE, "G": Outcome.GOAL}.get(under, Outcome.ICE)

    def text(self) -> str:
        """What the agent sees: a line for each row."""
        grid = [list(row) for row in self.rows]
        grid[self.agent[0]][self.agent[1]] = "A"
        return "\n".join("".join(row) for row in grid)


def read_lake(text: str) -> Lake:
    """The lake that `Lake.text` shows. ValueError where it is not a rectangle with one `A`."""
    rows = text.split("\n")
    cells = [(r, c) for r, row in enumerate(rows) for c, letter in enumerate(row) if letter == "A"]
    if len(cells) != 1 or len({len(row) for row in rows}) != 1 or not set("".join(rows)) <= set("AFGH"):
        raise ValueError(f"no map of a lake: {text!r}")
    return Lake(tuple(row.replace("A", "F") for row in rows), cells[0])


def shortest_path(lake: Lake) -> str | None:
    """Moves of a shortest way to the goal, found breadth first; None where there is none."""
    waiting, seen = deque([(lake, "")]), {lake.agent}
    while waiting:
        here, path = waiting.popleft()
        for move in MOVES:
            after, outcome = here.moved(move)
            if outcome is Outcome.GOAL:
                return path + move
            if outcome is Outcome.ICE and after.agent not in seen:
                seen.add(after.agent)
                waiting.append((after, path + move))
    return None


def draw_lake(rng: random.Random, *, size: int, holes: float, least: int, most: int) -> tuple[Lake, str]:
    """A lake of `size` x `size` cells, each a hole with the probability `holes`, and a shortest path of it.

    The goal is the last cell; the agent starts anywhere. Drawings without a path of `least` to `most` moves are thrown
    away.
    """
    while True:
        grid = [["H" if rng.random() < holes else "F" for _ in range(size)] for _ in range(size)]
        start = (rng.randrange(size), rng.randrange(size))
        grid[start[0]][start[1]] = "F"
        grid[-1][-1] = "G"
        lake = Lake(tuple("".join(row) for row in grid), start)
        path = shortest_path(lake) if lake.outcome() is Outcome.ICE else None
        if path is not None and least <= len(path) <= most:
            return lake, path
