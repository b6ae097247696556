"""From TOML text and `--set` overrides to a checked configuration, with complaints a person can act on."""

import difflib
import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, Tag, ValidationError

from schemas.config import Run
from schemas.errors import RequestError


def parse(text: str, where: str, overrides: Sequence[str] = ()) -> Run:
    """The configuration in a TOML text. `overrides` are `a.b=value`, typed like the file.

    Raises RequestError with one sentence for anything that is wrong.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RequestError(f"{where} is not valid TOML: {error}") from error
    for override in overrides:
        _apply(raw, override)
    return check(raw, where)


def check(raw: dict[str, Any], where: str) -> Run:
    """The configuration in parsed TOML or JSON."""
    try:
        run = Run.model_validate(raw)
    except ValidationError as error:
        raise RequestError(_sentence(error, where)) from error
    for at, number in _not_finite(run.model_dump(), ()):
        raise RequestError(f"{where}: `{at}` must be a finite number (got {number})")
    return run


def _not_finite(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    """(place, number) of what no digest and no document in the store can hold."""
    if isinstance(value, float) and not math.isfinite(value):
        yield ".".join(path), value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _not_finite(item, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _not_finite(item, (*path, str(number)))


def _apply(raw: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise RequestError(f"--set {override} is not of the form a.b=value")
    node: Any = raw
    for key in keys[:-1]:
        node = _child(node, key, override)
    if isinstance(node, list):
        node[_index(node, keys[-1], override)] = _value(text)
    elif isinstance(node, dict):
        node[keys[-1]] = _value(text)
    else:
        raise RequestError(f"--set {override}: {'.'.join(keys[:-1])} is a value, not a section")


def _child(node: Any, key: str, override: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, key, override)]
    if isinstance(node, dict):
        return node.setdefault(key, {})
    raise RequestError(f"--set {override}: `{key}` lies below a value, not a section")


def _index(node: list[Any], key: str, override: str) -> int:
    """The place of a list item by its number or its `name`."""
    names = [item.get("name") if isinstance(item, dict) else None for item in node]
    if key in names:
        return names.index(key)
    if key.isdecimal() and int(key) < len(node):
        return int(key)
    raise RequestError(
        f"--set {override}: there is no item `{key}` (there are {len(node)}: 0 to {len(node) - 1}, or by name)"
    )


def _value(text: str) -> Any:
    """The override's value as TOML; bare words are strings."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _sentence(error: ValidationError, where: str) -> str:
    first = error.errors()[0]
    place = _place(first["loc"])
    at = ".".join(str(part) for part in place.path)
    if first["type"] == "extra_forbidden":
        return f"{where}: unknown key `{at}`{_suggestion(str(place.path[-1]), place.known)}"
    if first["type"] == "missing":
        return f"{where}: `{at}` is missing"
    message = first["msg"].removeprefix("Value error, ")
    got = "" if first["type"] == "value_error" else f" (got {_got(first)})"
    return f"{where}: {f'`{at}`: ' if at else ''}{message}{got}"


def _got(error: Any) -> str:
    """What stood there; of a union's section only the key that tells its members apart."""
    value = error["input"]
    return repr(value.get(error["type"], value) if isinstance(value, dict) else value)


@dataclass(frozen=True)
class _Place:
    """Where an error is. `path`: as the file has it, without the tags by which unions tell their members apart."""

    path: tuple[int | str, ...]
    known: tuple[str, ...]
    """Keys of the section that the last part of the path is in."""


def _place(loc: Sequence[int | str]) -> _Place:
    path: list[int | str] = []
    known: tuple[str, ...] = ()
    here: Any = Run
    for part in loc:
        members = _members(here)
        if isinstance(part, str) and part in members:
            here = members[part]
            continue
        path.append(part)
        if isinstance(part, int):
            continue
        model = _model_in(here)
        known = tuple(model.model_fields) if model else ()
        here = model.model_fields[part].annotation if model and part in known else None
    return _Place(tuple(path), known)


def _suggestion(key: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if close:
        return f": did you mean `{close[0]}`?"
    return f"; known keys here: {', '.join(known)}" if known else ""


def _members(annotation: Any) -> dict[str, Any]:
    """Tag → member of the union in an annotation."""
    inner = get_args(annotation)
    tags = [i.tag for i in inner if isinstance(i, Tag)]
    if tags:
        return {tags[0]: inner[0]}
    return {tag: member for one in inner for tag, member in _members(one).items()}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = _model_in(inner)
        if found is not None:
            return found
    return None
