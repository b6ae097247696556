"""Messages for people and templates, shaped like the field's chat format.

Made by environments and agents (rollout) and by demonstration files; eaten by the chat formats in `models`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class ToolCall:
    """A request of the model to run one tool."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


@dataclass(frozen=True)
class Message:
    """One turn of a conversation. `name` is the tool's name in a tool message.

    `thinking` is what a model says to itself before it answers, where its format knows that; `content` is without it.
    """

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    name: str = ""
    tool_call_id: str = ""
    thinking: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What a tool says beside `content`, for trajectories: JSON that no model sees."""


@dataclass(frozen=True)
class ToolSpec:
    """What a model is told of a tool: name, purpose, and the JSON Schema of its arguments (an object schema)."""

    name: str
    description: str
    parameters: dict[str, Any] = field(default_factory=dict)


def to_json(message: Message) -> dict[str, Any]:
    """The message as the JSON object that data files and shards hold; empty fields are left out."""
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    if message.name:
        out["name"] = message.name
    if message.tool_call_id:
        out["tool_call_id"] = message.tool_call_id
    if message.thinking:
        out["reasoning_content"] = message.thinking
    if message.facts:
        out["facts"] = dict(message.facts)
    return out
