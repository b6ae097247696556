"""Makes the example's data files: lakes of 4 x 4 cells that can be crossed, and games of good and poor players.

python examples/game/make_data.py [FOLDER]

A good player takes a shortest path. A poor player moves anyhow, except that it does not walk against the edge. A game
stops at the goal, in a hole, or after `MOST_MOVES`. No lake stands in two files.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from lake import MOVES, Lake, Outcome, draw_lake, shortest_path

SEED = 20
SIZES = {"held_out": 500, "gate": 300, "train": 1024}
GAMES = {"skill": (8000, 0.0), "habit": (2000, 0.9)}
"""Games of each file, and the share of them that a poor player plays."""
MOST_MOVES = 8
KIND = {"size": 4, "holes": 0.3, "least": 3, "most": 7}
"""Cells a side, share of holes, and how many moves a lake takes."""


def lakes(rng: random.Random) -> Iterator[tuple[Lake, str]]:
    """Distinct lakes with a shortest path of each, without end (there are millions)."""
    seen = set()
    while True:
        lake, path = draw_lake(rng, **KIND)
        if lake not in seen:
            seen.add(lake)
            yield lake, path


def good_move(lake: Lake, rng: random.Random) -> str:
    """A move of some shortest path; which of them is left to chance."""
    lengths = {move: length_after(lake, move) for move in MOVES}
    return rng.choice([move for move, length in lengths.items() if length == min(lengths.values())])


def length_after(lake: Lake, move: str) -> float:
    """Moves that are left after a move: 0 at the goal, infinitely many in a hole."""
    after, outcome = lake.moved(move)
    if outcome is Outcome.GOAL:
        return 0
    path = shortest_path(after) if outcome is Outcome.ICE else None
    return float("inf") if path is None else len(path)


def poor_move(lake: Lake, rng: random.Random) -> str:
    """Any move that changes something."""
    return rng.choice([move for move in MOVES if lake.moved(move)[0] != lake])


def game(lake: Lake, rng: random.Random, poor: bool) -> dict[str, str]:
    """A demonstration: every map that the player saw, and its moves. The messages are JSON text."""
    messages, outcome = [], Outcome.ICE
    while outcome is Outcome.ICE and len(messages) < 2 * MOST_MOVES:
        move = (poor_move if poor else good_move)(lake, rng)
        messages += [{"role": "user", "content": lake.text()}, {"role": "assistant", "content": move}]
        lake, outcome = lake.moved(move)
    return {"messages": json.dumps(messages)}


def main(folder: Path, games: int | None = None) -> None:
    """Write every file into `folder`; `games` takes so many games for each file instead of all."""
    rng = random.Random(SEED)
    source = lakes(rng)
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in SIZES.items():
        rows = [(f"{name}-{i:04d}", *next(source)) for i in range(size)]
        lines = [json.dumps({"id": i, "prompt": lake.text(), "answer": path}) for i, lake, path in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    for name, (count, poor) in GAMES.items():
        played = [game(next(source)[0], rng, poor=rng.random() < poor) for _ in range(games or count)]
        pq.write_table(pa.Table.from_pylist(played), folder / f"{name}.parquet", compression="zstd")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data")
