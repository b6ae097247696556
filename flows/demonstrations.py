"""Solved episodes as demonstrations: a file for `warm_up.data`, from gold answers or from a model that can."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from schemas.errors import RequestError
from schemas.messages import ToolSpec
from schemas.trajectory import Trajectory


def check_file(name: str | None) -> None:
    """RequestError, before any work, where demonstrations can't go to this file."""
    if name is None:
        return
    if Path(name).suffix != ".jsonl":
        raise RequestError(f"--demonstrations {name}: they go to a file that ends in .jsonl")
    if Path(name).exists():
        raise RequestError(f"--demonstrations {name} is there already: name another file, or remove it")
    if not Path(name).absolute().parent.is_dir():
        raise RequestError(f"--demonstrations {name}: there is no folder {Path(name).absolute().parent}")


def write_demonstrations(rows: Sequence[Trajectory], tools: Sequence[ToolSpec], name: str) -> int:
    """Write the conversations of the solved rows, each up to its last assistant turn; how many there are.

    RequestError where none is solved or the file can't be written. A row of several segments is left out: its
    messages are those of one conversation alone.
    """
    solved = [row for row in rows if row.solved and row.segment_starts == (0,)]
    if not solved:
        raise RequestError(f"--demonstrations {name}: no episode of one conversation is solved, so there is none")
    told = [{"type": "function", "function": asdict(tool)} for tool in tools]
    try:
        with Path(name).open("x", encoding="utf-8") as file:
            for row in solved:
                line = {"messages": _conversation(row)} | ({"tools": told} if told else {})
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
    except OSError as error:
        raise RequestError(f"--demonstrations {name} can't be written: {error.strerror or error}") from error
    return len(solved)


def _conversation(row: Trajectory) -> list[dict[str, Any]]:
    """Without what only trajectories keep of a tool's answer, and without what no turn follows."""
    messages = [{k: v for k, v in m.items() if k != "facts"} for m in json.loads(row.messages)]
    last = max(i for i, m in enumerate(messages) if m["role"] == "assistant")
    return messages[: last + 1]
