"""The stored formats as text: columns, names of statuses and ends, fields of documents, keys.

`python tests/support/formats.py` writes it to `tests/schemas/stored_formats.txt`. It refuses where the text changed and
`SCHEMA_VERSION` did not: a program and an older one would then misread each other instead of saying so.
"""

import inspect
import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from schemas import evaluation, expired, keys, ledger, manifest, promotion, quarantine, selection, trajectory
from schemas.base import Document
from schemas.version import SCHEMA_VERSION
from storage import catalog_part

WRITTEN = Path(__file__).parents[1] / "schemas" / "stored_formats.txt"
MODULES = (evaluation, expired, manifest, promotion, quarantine, selection)


def described() -> str:
    """One line for everything that a reader relies on. The configuration is no part of it: it is checked by itself."""
    lines = [f"schema version {SCHEMA_VERSION}"]
    lines += _columns("shard", trajectory.COLUMNS)
    lines += _columns("ledger", ledger.COLUMNS)
    lines += _columns("catalog", catalog_part.COLUMNS)
    for kind in (trajectory.ShardMetadata, ledger.RecordMetadata):
        lines += [f"{kind.__name__}: {f.name}" for f in fields(kind)]
    for name, values in (("Status", trajectory.Status), ("Disposition", ledger.Disposition), ("Kind", ledger.Kind)):
        lines += [f"{name}: {value}" + _failed(value) for value in values]
    lines += dict.fromkeys(line for module in MODULES for line in _documents(module))
    lines += [f"key {name}: {key}" for name, key in _keys()]
    return "\n".join(lines) + "\n"


def _columns(name: str, schema: pa.Schema) -> list[str]:
    return [f"{name}: {field.name} {field.type}" for field in schema]


def _failed(value: StrEnum) -> str:
    return " (never trained)" if value in trajectory.FAILED else ""


def _documents(module: Any) -> Iterator[str]:
    """A line for each field of a module's documents, and of the sections in them."""
    for name, kind in sorted(vars(module).items()):
        if isinstance(kind, type) and issubclass(kind, Document) and kind.__module__ == module.__name__:
            whole = TypeAdapter(kind).json_schema()
            for part, schema in sorted({name: whole, **whole.pop("$defs", {})}.items()):
                for field, value in schema["properties"].items():
                    if field != "schema_version":
                        yield f"{part}: {field} {json.dumps(_plain(value), sort_keys=True)}"


def _plain(value: Any) -> Any:
    """A JSON schema without its texts."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if k not in ("title", "description")}
    return [_plain(v) for v in value] if isinstance(value, list) else value


def _keys() -> Iterator[tuple[str, str]]:
    for name, make in sorted(vars(keys).items()):
        if inspect.isfunction(make) and not name.startswith("_"):
            given = inspect.signature(make).parameters.values()
            found = make(*(7 if p.annotation in (int, "int") else p.name.upper() for p in given))
            yield name, str(found)


def write() -> None:
    """Write the text; SystemExit where it changed under the same version."""
    new, old = described(), WRITTEN.read_text(encoding="utf-8") if WRITTEN.exists() else ""
    if old != new and old.partition("\n")[0] == new.partition("\n")[0]:
        sys.exit("the stored formats changed: raise SCHEMA_VERSION in schemas/version.py first")
    WRITTEN.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    write()
