"""A tool from a typed function: its JSON Schema comes from the annotations, its texts from the docstring.

@tool
def stock(article: str, shop: Literal["north", "south"] = "north") -> int:
    \"""How many of an article are left.

    Args:
        article: Its name, singular.
    \"""
"""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError, validate_call

from rollout.tools import BaseTool, ToolError
from schemas.errors import RequestError


def tool(function: Callable[..., Any]) -> type[BaseTool]:
    """A class of tools, named after the function, for `environment.tools`.

    Arguments are checked and converted by their types, nested ones too, and what is wrong is told to the model. A plain
    function runs in a thread. RequestError where an argument has no type or can't be passed by its name.
    """
    name = function.__name__
    _check(function)
    summary, texts = described(inspect.getdoc(function) or "")
    try:
        schema = _schema(function, texts)
    except PydanticUserError as error:
        raise RequestError(f"the tool `{name}` has an argument of a type that JSON can't hold: {error}") from error
    body = {"name": name, "description": summary, "parameters": schema, "apply": staticmethod(_checked(function))}
    return type(name, (BaseTool,), {**body, "__module__": function.__module__, "__doc__": function.__doc__})


def _check(function: Callable[..., Any]) -> None:
    for argument in inspect.signature(function).parameters.values():
        if argument.kind not in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY):
            raise RequestError(f"the tool `{function.__name__}` can't take `{argument}`: arguments are passed by name")
        if argument.annotation is argument.empty:
            raise RequestError(f"the argument `{argument.name}` of the tool `{function.__name__}` has no type: add one")


def _schema(function: Callable[..., Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """The JSON Schema of the arguments, an object."""
    if not inspect.signature(function).parameters:
        return {"type": "object", "properties": {}}
    schema = TypeAdapter(function).json_schema()  # type: ignore[arg-type]  # it takes functions too
    for name, part in schema["properties"].items():
        part.pop("title", None)
        if name in texts:
            part["description"] = texts[name]
    return schema


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose wrong arguments are the model's fault. A ValidationError from within is its own."""
    checked, name = validate_call(function), function.__name__

    async def later(**arguments: Any) -> Any:
        try:
            return await checked(**arguments)
        except ValidationError as error:
            raise _fault(error, name) from error

    def at_once(**arguments: Any) -> Any:
        try:
            return checked(**arguments)
        except ValidationError as error:
            raise _fault(error, name) from error

    return later if inspect.iscoroutinefunction(function) else at_once


def _fault(error: ValidationError, name: str) -> Exception:
    if error.title != name:
        return error
    wrong = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
    return ToolError("; ".join(wrong))


def described(text: str) -> tuple[str, dict[str, str]]:
    """The part of a docstring that comes before its sections, on one line, and the texts of its `Args:`."""
    summary, _, rest = re.sub(r"^(Returns|Raises|Yields):.*", "", text, flags=re.M | re.S).partition("Args:\n")
    texts: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(rest).splitlines():
        found = re.match(r"(\w+)(?: \([^)]*\))?: *(.*)", line)
        if found:
            name, texts[found[1]] = found[1], found[2]
        elif name and line.startswith(" "):
            texts[name] = f"{texts[name]} {line.strip()}".strip()
    return " ".join(summary.split()), texts
