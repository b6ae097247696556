"""The reference of the configuration as Markdown: a table for each section, made from the models' own words.

`python -m schemas.reference FILE` rewrites what follows the marker in FILE; a test keeps it equal to the models.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemas.json_schema import run_schema

MARKER = "<!-- From here on made by `make schema` from schemas/config.py. -->\n"


def reference() -> str:
    """Every section of the configuration, the whole first, then its parts in the order of their first use."""
    schema = run_schema()
    sections = {"Run": schema, **{name: schema["$defs"][name] for name in _used(schema, schema["$defs"])}}
    return "\n".join(_section(name, section) for name, section in sections.items())


def with_reference(document: str) -> str:
    """The document with everything after the marker made anew."""
    above = document.partition(MARKER)[0]
    return f"{above}{MARKER}\n{reference()}"


def _used(section: dict[str, Any], known: dict[str, Any]) -> Iterator[str]:
    """Names of the sections that one refers to, depth first, each once."""
    seen: set[str] = set()
    waiting = _references(section)
    while waiting:
        name = waiting.pop(0)
        if name not in seen:
            seen.add(name)
            yield name
            waiting = _references(known[name]) + waiting


def _references(section: dict[str, Any]) -> list[str]:
    return re.findall(r'"#/\$defs/(\w+)"', json.dumps(section["properties"]))


def _section(name: str, section: dict[str, Any]) -> str:
    required = section.get("required", [])
    rows = [_row(field, value, field in required) for field, value in section["properties"].items()]
    head = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([f"## {name}", "", _words(section), "", *head, *rows, ""])


def _row(field: str, value: dict[str, Any], required: bool) -> str:
    default = "required" if required else _default(value)
    cells = [f"`{field}`", _type(value), default, _words(value)]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _words(value: dict[str, Any]) -> str:
    return " ".join(value.get("description", "").split())


def _default(value: dict[str, Any]) -> str:
    default = value.get("default")
    if default is None:
        return ""
    return "a section of defaults" if isinstance(default, dict) and default else f"`{json.dumps(default)}`"


def _type(value: dict[str, Any]) -> str:
    """A field's type in a few words."""
    if "$ref" in value:
        name = value["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "enum" in value:
        return " or ".join(f"`{v}`" for v in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if either := value.get("anyOf") or value.get("oneOf"):
        return " or ".join(_type(v) for v in either if v.get("type") != "null")
    if value.get("type") == "array":
        return f"list of {_type(value['items'])}"
    return f"{value.get('type', 'any')}{_bounds(value)}"


def _bounds(value: dict[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign} {value[key]:g}" for key, sign in signs.items() if key in value]
    return f" {', '.join(found)}" if found else ""


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_reference(path.read_text(encoding="utf-8")), encoding="utf-8")
