"""The example of a program without a run: gold answers through its own loop, and a second try as a second segment."""

import json
from pathlib import Path

import pytest
from support.programs import episode
from support.rollouts import CALL, END

from flows.cli import main
from rollout.cast import load_cast
from tasks.request import read_config

EXAMPLE = Path(__file__).parents[2] / "examples" / "program"


@pytest.mark.slow
def test_gold_answers_solve_their_tasks(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    config = str(EXAMPLE / "program.toml")
    assert main(["validate", config, "--tasks", "3", "--json", "--root", str(tmp_path)]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert [f["gold"] for f in files if f["setting"] == "rl.tasks"] == [3]


async def test_a_second_try_is_a_segment_of_its_own() -> None:
    config, folder = read_config(str(EXAMPLE / "program.toml"))
    turns = iter([[*b"?", END], [CALL, *b"12*11", END], [*b"132", END]])
    row = await episode(load_cast(config.environment, str(folder)).environment, lambda *_: next(turns))  # type: ignore[arg-type]
    assert (row.status, row.reward, row.segment_starts, len(row.turns)) == ("succeeded", 1.0, (0, 12), 3)
    assert [m["role"] for m in json.loads(row.messages)] == ["user", "assistant", "tool", "assistant"]
