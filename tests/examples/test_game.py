"""The game example without a model: its lakes, its moves, players that win and lose, and every gold path."""

import importlib.util
import json
import random
import sys
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest

from flows.cli import main
from rollout.agents import Action
from rollout.cast import load_cast
from rollout.environments import BaseTaskEnv
from schemas.data import Task
from schemas.messages import Message
from storage.rows import read_tasks
from tasks.request import read_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "game"
SPLITS = ("train", "held_out", "gate")
LAKE = "AFH\nHFF\nHHG"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the example, loaded as a script would be."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    spec = importlib.util.spec_from_file_location(f"game_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def environment(lake: str = LAKE) -> BaseTaskEnv:
    config, folder = read_config(str(EXAMPLE / "game.toml"))
    return load_cast(config.environment, str(folder)).make_environment(Task("t", lake, "rdrd"))


async def play(moves: list[str], lake: str = LAKE) -> tuple[list[str], dict[str, float] | None]:
    """What the agent sees after each move, "" once the episode is over, and the score if it is."""
    world, seen = environment(lake), []
    for move in moves:
        result = await world.step(Action(Message("assistant", move)))
        seen.append("" if result.done else result.messages[0].content)
    return seen, dict(await world.reward([])) if seen[-1] == "" else None  # type: ignore[arg-type]


def test_the_data_files_are_what_the_script_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script("make_data", monkeypatch).main(tmp_path, games=100)
    for split in SPLITS:
        assert (tmp_path / f"{split}.jsonl").read_text() == (EXAMPLE / "data" / f"{split}.jsonl").read_text()
    kept = pq.read_table(EXAMPLE / "data" / "skill.parquet")
    assert kept.num_rows == 8000 and pq.read_table(tmp_path / "skill.parquet").equals(kept.slice(0, 100))


def test_no_lake_stands_in_two_files() -> None:
    lakes = [t.prompt for s in SPLITS for t in read_tasks((EXAMPLE / f"data/{s}.jsonl").read_bytes(), "jsonl", s)]
    files = [pq.read_table(EXAMPLE / f"data/{name}.parquet") for name in ("skill", "habit")]
    games = [json.loads(text) for file in files for text in file["messages"].to_pylist()]
    lakes += [game[0]["content"] for game in games]
    assert len(lakes) == len(set(lakes)) == 11824
    assert max(len(game) for game in games) == 16


def test_a_drawn_lake_can_be_crossed_and_depends_on_its_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = script("lake", monkeypatch)
    kind = {"size": 5, "holes": 0.5, "least": 5, "most": 12}
    for seed in range(20):
        drawn, path = lake.draw_lake(random.Random(seed), **kind)
        assert lake.draw_lake(random.Random(seed), **kind) == (drawn, path)
        assert len(path) >= 5 and lake.read_lake(drawn.text()) == drawn
        for move in path:
            assert drawn.outcome() is lake.Outcome.ICE
            drawn, outcome = drawn.moved(move)
        assert outcome is lake.Outcome.GOAL


def test_no_path_is_found_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    lake = script("lake", monkeypatch)
    assert lake.shortest_path(lake.read_lake("AH\nHG")) is None
    with pytest.raises(ValueError, match="no map"):
        lake.read_lake("FF\nFG")


async def test_who_arrives_is_paid_once_and_a_detour_is_recorded() -> None:
    assert await play(["r", "d", "r", "d"]) == (
        ["FAH\nHFF\nHHG", "FFH\nHAF\nHHG", "FFH\nHFA\nHHG", ""], {"reward": 1.0, "success": 1.0, "detour": 0.0}
    )  # fmt: skip
    _, score = await play(["up", " Right.", "D", "right", "DOWN"])
    assert score == {"reward": 1.0, "success": 1.0, "detour": 1.0}


async def test_who_falls_in_is_not_paid() -> None:
    assert await play(["d"]) == ([""], {"reward": 0.0, "success": 0.0, "detour": 0.0})


@pytest.mark.parametrize("nonsense", ["", "?", "rd", "go right", "l, r, u or d", "é"])
async def test_what_is_no_move_is_asked_again(nonsense: str) -> None:
    assert await play([nonsense]) == ([f"l, r, u or d?\n{LAKE}"], None)


def test_gold_paths_are_proven(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["validate", str(EXAMPLE / "game.toml"), "--root", str(tmp_path), "--tasks", "20", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(f["tasks"], f["gold"]) for f in found["files"]] == [(1024, 20), (500, 20), (300, 20)]
