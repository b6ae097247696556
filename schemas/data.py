"""The shapes of the user's data files: demonstrations, preferences, tasks. `docs/data.md` is the reference.

Rows come as parsed JSON objects (from JSONL or Parquet); every complaint names the file and the line.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import RequestError
from schemas.messages import Message, ToolCall, ToolSpec


@dataclass(frozen=True)
class Task:
    """One problem for an agent. Anything beside `id`, `prompt` and `answer` is kept in `extra`."""

    id: str
    prompt: str
    answer: str
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Demonstration:
    """A conversation to imitate; only its assistant turns are trained."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    place: str = field(default="a demonstration", compare=False)
    """File and line, for complaints."""


@dataclass(frozen=True)
class Preference:
    """A prompt with a better and a worse continuation; only their assistant turns are trained."""

    prompt: tuple[Message, ...]
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    place: str = field(default="a pair", compare=False)
    """File and line, for complaints."""


def task(row: Mapping[str, Any], where: str) -> Task:
    """The task in one row of a task file."""
    missing = [k for k in ("id", "prompt", "answer") if k not in row]
    if missing:
        raise RequestError(f"{where}: a task needs `{missing[0]}` (every line has id, prompt and answer)")
    extra = {k: v for k, v in row.items() if k not in ("id", "prompt", "answer")}
    return Task(str(row["id"]), str(row["prompt"]), str(row["answer"]), extra)


def demonstration(row: Mapping[str, Any], where: str) -> Demonstration:
    """The demonstration in one row of an SFT file."""
    conversation = messages(row.get("messages"), f"{where}: `messages`")
    if not any(m.role == "assistant" for m in conversation):
        raise RequestError(f"{where}: a demonstration needs at least one assistant message, or nothing is trained")
    return Demonstration(conversation, tools(row.get("tools"), where), where)


def preference(row: Mapping[str, Any], where: str) -> Preference:
    """The pair in one row of a preference file."""
    missing = [k for k in ("prompt", "chosen", "rejected") if k not in row]
    if missing:
        raise RequestError(f"{where}: a pair needs `{missing[0]}` (every row has prompt, chosen and rejected)")
    prompt, *sides = (messages(row[k], f"{where}: `{k}`") for k in ("prompt", "chosen", "rejected"))
    if prompt[-1].role == "assistant":
        raise RequestError(f"{where}: `prompt` ends with an assistant message: move it to `chosen` and `rejected`")
    for name, side in zip(("chosen", "rejected"), sides, strict=True):
        if side[0].role != "assistant":
            raise RequestError(f"{where}: `{name}` must start with an assistant message")
    if sides[0] == sides[1]:
        raise RequestError(f"{where}: `chosen` and `rejected` are equal: there is nothing to prefer, so leave it out")
    return Preference(prompt, sides[0], sides[1], tools(row.get("tools"), where), where)


def opening(row: Mapping[str, Any], where: str) -> str:
    """The first user message of a demonstration, or of the prompt of a preference; empty where there is none."""
    conversation = messages(row.get("messages", row.get("prompt")), where)
    return next((m.content for m in conversation if m.role == "user"), "")


def messages(value: Any, where: str) -> tuple[Message, ...]:
    """A list of chat messages; RequestError where it is missing, empty or misshapen."""
    value = _parsed(value, where)
    if not isinstance(value, list) or not value:
        raise RequestError(f"{where} must be a non-empty list of messages with `role` and `content`")
    return tuple(_message(m, f"{where}[{i}]") for i, m in enumerate(value))


def tools(value: Any, where: str) -> tuple[ToolSpec, ...]:
    """Tool descriptions in the field's function format, with or without the `function` wrapper."""
    value = _parsed(value, where) or []
    found = [t.get("function", t) for t in value if isinstance(t, Mapping)]
    if len(found) != len(value) or any("name" not in t for t in found):
        raise RequestError(f"{where}: `tools` must be a list of functions, each with a `name`")
    return tuple(ToolSpec(t["name"], t.get("description", ""), dict(t.get("parameters") or {})) for t in found)


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, Mapping) or value.get("role") not in ("system", "user", "assistant", "tool"):
        raise RequestError(f"{where} needs a `role` of system, user, assistant or tool")
    for key in ("content", "reasoning_content"):
        if not isinstance(value.get(key), str | None):
            raise RequestError(f"{where}: `{key}` must be text")
    calls = tuple(_call(c, where) for c in value.get("tool_calls") or ())
    name, call_id, thinking = (value.get(key) or "" for key in ("name", "tool_call_id", "reasoning_content"))
    return Message(value["role"], value.get("content") or "", calls, name, call_id, thinking)


def _call(value: Any, where: str) -> ToolCall:
    call = value.get("function", value) if isinstance(value, Mapping) else {}
    arguments = _parsed(call.get("arguments", {}), where)
    if "name" not in call or not isinstance(arguments, Mapping):
        raise RequestError(f"{where}: a tool call needs a `name` and an object of `arguments`")
    return ToolCall(call["name"], dict(arguments), value.get("id") or "")


def _parsed(value: Any, where: str) -> Any:
    """Parquet files may hold nested values as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise RequestError(f"{where} is text that is not JSON ({error})") from error
