"""A tool from a typed function: its JSON Schema comes from the annotations, its texts from the docstring.

@tool
def stock(article: str, shop: Literal["north", "south"] = "north") -> int:
    \"""How many of an article are left.

    Args:
        article: Its name, singular.
    \"""

A method of an environment can be one, too: it acts on the episode that `self` is.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from pydantic import PydanticUserError, TypeAdapter, ValidationError, validate_call

from rollout.tools import BaseTool, ToolError
from schemas.errors import RequestError


class EpisodeTool(BaseTool):
    """A tool that is a method of an environment. Calls of one turn run one after the other: they share the episode."""

    concurrent: ClassVar[bool] = False

    def __init__(self, environment: Any = None) -> None:
        """`environment`: the episode; without one the tool can only be described."""
        self.environment = environment

    def bound(self, environment: Any) -> "EpisodeTool":
        """The tool of one episode."""
        return type(self)(environment)


class ToolMethod:
    """A method of an environment that is a tool as well; the environment's own code calls it as ever."""

    def __init__(self, function: Callable[..., Any], kind: type[EpisodeTool]) -> None:
        self.function, self.kind = function, kind

    def __get__(self, environment: Any, owner: type | None = None) -> Any:
        return self if environment is None else self.function.__get__(environment, owner)


def tool_methods(environment: type) -> list[EpisodeTool]:
    """The tools among the methods of an environment's class, in the order in which they are defined."""
    found: dict[str, Any] = {}
    for part in reversed(environment.__mro__):
        found |= vars(part)
    return [value.kind() for value in found.values() if isinstance(value, ToolMethod)]


def tool(function: Callable[..., Any]) -> Any:
    """A class of tools, named after the function, for `environment.tools`; of a method of an environment, a method
    that is offered to the model without being named there.

    Arguments are checked and converted by their types, nested ones too, and what is wrong is told to the model. A plain
    function runs in a thread. RequestError where an argument has no type or can't be passed by its name.
    """
    if next(iter(inspect.signature(function).parameters), "") == "self":
        return ToolMethod(function, cast(type[EpisodeTool], _kind(function, EpisodeTool)))
    return _kind(function, BaseTool)


def _kind(function: Callable[..., Any], base: type[BaseTool]) -> type[BaseTool]:
    name = function.__name__
    _check(function)
    summary, texts = described(inspect.getdoc(function) or "")
    try:
        schema = _schema(function, texts)
    except PydanticUserError as error:
        raise RequestError(f"the tool `{name}` has an argument of a type that JSON can't hold: {error}") from error
    body = {"name": name, "description": summary, "parameters": schema, "apply": _apply(function)}
    return type(name, (base,), {**body, "__module__": function.__module__, "__doc__": function.__doc__})


def _arguments(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """What the model passes: all but an environment's `self`."""
    return [p for name, p in inspect.signature(function).parameters.items() if name != "self"]


def _check(function: Callable[..., Any]) -> None:
    for argument in _arguments(function):
        if argument.kind not in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY):
            raise RequestError(f"the tool `{function.__name__}` can't take `{argument}`: arguments are passed by name")
        if argument.annotation is argument.empty:
            raise RequestError(f"the argument `{argument.name}` of the tool `{function.__name__}` has no type: add one")


def _schema(function: Callable[..., Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """The JSON Schema of the arguments, an object."""
    if not _arguments(function):
        return {"type": "object", "properties": {}}
    schema = TypeAdapter(function).json_schema()  # type: ignore[arg-type]  # it takes functions too
    if schema["properties"].pop("self", None) is not None:
        schema["required"] = [name for name in schema["required"] if name != "self"]
    for name, part in schema["properties"].items():
        part.pop("title", None)
        if name in texts:
            part["description"] = texts[name]
    return schema


def _apply(function: Callable[..., Any]) -> Callable[..., Any]:
    """A tool's `apply`: wrong arguments are the model's fault, a ValidationError from within is the function's own."""
    checked, name = validate_call(function), function.__name__

    async def later(made: BaseTool, **arguments: Any) -> Any:
        try:
            return await checked(*_episode(made), **arguments)
        except ValidationError as error:
            raise _fault(error, name) from error

    def at_once(made: BaseTool, **arguments: Any) -> Any:
        try:
            return checked(*_episode(made), **arguments)
        except ValidationError as error:
            raise _fault(error, name) from error

    return later if inspect.iscoroutinefunction(function) else at_once


def _episode(made: BaseTool) -> tuple[Any, ...]:
    """What a method is called with before its arguments."""
    return (made.environment,) if isinstance(made, EpisodeTool) else ()


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
