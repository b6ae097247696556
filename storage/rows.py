"""Data files of users, JSONL or Parquet, to checked rows. Every complaint names the file and the line."""

import io
import json
from collections.abc import Iterator
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from schemas import data
from schemas.errors import RequestError

_Row = TypeVar("_Row")


def read_rows(raw: bytes, suffix: str, where: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The rows of a file's bytes, each with the words that name its place. `suffix` is `jsonl` or `parquet`."""
    if suffix == "parquet":
        yield from _parquet(raw, where)
    elif suffix == "jsonl":
        yield from _jsonl(raw, where)
    else:
        raise RequestError(f"{where}: data files are .jsonl or .parquet")


def read_tasks(raw: bytes, suffix: str, where: str) -> list[data.Task]:
    """The tasks of a file; ids must be unique and there must be at least one."""
    found: dict[str, data.Task] = {}
    for row, place in read_rows(raw, suffix, where):
        task = data.task(row, place)
        if task.id in found:
            raise RequestError(f"{place}: the task id `{task.id}` stands there twice")
        found[task.id] = task
    return _some(list(found.values()), where)


def read_demonstrations(raw: bytes, suffix: str, where: str) -> list[data.Demonstration]:
    """The demonstrations of a file, in its order; there must be at least one."""
    return _some([data.demonstration(row, place) for row, place in read_rows(raw, suffix, where)], where)


def read_preferences(raw: bytes, suffix: str, where: str) -> list[data.Preference]:
    """The preference pairs of a file, in its order; there must be at least one."""
    return _some([data.preference(row, place) for row, place in read_rows(raw, suffix, where)], where)


def _some(rows: list[_Row], where: str) -> list[_Row]:
    if not rows:
        raise RequestError(f"{where} holds no rows")
    return rows


def _jsonl(raw: bytes, where: str) -> Iterator[tuple[dict[str, Any], str]]:
    try:
        lines = raw.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise RequestError(f"{where} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _object(line, f"{where} line {number}"), f"{where} line {number}"


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise RequestError(f"{place} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise RequestError(f"{place} is not a JSON object")
    return value


def _parquet(raw: bytes, where: str) -> Iterator[tuple[dict[str, Any], str]]:
    try:
        table = pq.read_table(io.BytesIO(raw))
    except (pa.ArrowException, OSError) as error:
        raise RequestError(f"{where} is not a readable Parquet file ({error})") from error
    for number, row in enumerate(table.to_pylist()):
        yield {k: v for k, v in row.items() if v is not None}, f"{where} row {number}"
