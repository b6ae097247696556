"""The chat format of models made from scratch: one control token a turn, tool calls in as few tokens as possible.

`<|user|>47*38=?<|end|><|assistant|>` is answered by `<|call|>47*38<|end|>`, to which the environment adds
`<|tool|>1786<|end|><|assistant|>`. Tools are not described to the model: it knows them from its demonstrations.

A call is `name:argument`. The name may be left out where one tool is offered. A tool with one parameter takes the raw
text as its argument; one with several takes a JSON object.
"""

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from models.chat import ParsedTurn, control, format_digest
from models.chat_calls import MalformedCall
from models.tokenizer import Tokenizer
from schemas.messages import Message, ToolCall, ToolSpec


class TagFormat:
    """Implements `ChatFormat` for the control tokens of `ByteTokenizer`."""

    CONTROLS: ClassVar[tuple[str, ...]] = (
        "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|call|>", "<|end|>",
    )  # fmt: skip

    def __init__(self, tokenizer: Tokenizer, tools: Sequence[ToolSpec]) -> None:
        self._tokenizer = tokenizer
        self._tools = {tool.name: tool for tool in tools}
        self._ids = {name: control(tokenizer, name) for name in self.CONTROLS}
        self._end, self._call = self._ids["<|end|>"], self._ids["<|call|>"]
        self.stop_ids: tuple[int, ...] = (self._end,)
        self.digest = format_digest("tags", tokenizer, tools)

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        return self.continuation(messages)

    def continuation(self, messages: Sequence[Message]) -> list[int]:
        turns = [i for message in messages for i in self._turn(message)]
        return [*turns, self._ids["<|assistant|>"]]

    def assistant(self, message: Message) -> list[int]:
        calls = [i for call in message.tool_calls for i in (self._call, *self._encode(self._written(call)))]
        return [*self._encode(message.content), *calls, self._end]

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        ended = bool(ids) and ids[-1] == self._end
        content, *calls = _split(ids[:-1] if ended else ids, self._call)
        text = self._tokenizer.decode(content)
        if not calls:
            return ParsedTurn(Message("assistant", text))
        try:
            if not ended:
                raise MalformedCall("The tool call was cut off before its end.")
            read = tuple(self._read(call, number) for number, call in enumerate(calls))
        except MalformedCall as error:
            return ParsedTurn(Message("assistant", text), str(error))
        return ParsedTurn(Message("assistant", text, tool_calls=read))

    def _turn(self, message: Message) -> list[int]:
        header = self._ids[f"<|{message.role}|>"]
        if message.role == "assistant":
            return [header, *self.assistant(message)]
        return [header, *self._encode(message.content), self._end]

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def _written(self, call: ToolCall) -> str:
        """The text of a call: the shortest that reads back as the same call."""
        spec = self._tools.get(call.name)
        only = _only_parameter(spec) if spec else ""
        if only and not call.arguments:
            argument = ""
        elif only and call.arguments.keys() == {only}:
            value = call.arguments[only]
            argument = value if isinstance(value, str) else json.dumps(value)
        else:
            argument = json.dumps(call.arguments)
        looks_named = argument.partition(":")[0] in self._tools and ":" in argument
        named = len(self._tools) != 1 or not only or looks_named
        return f"{call.name}:{argument}" if named else argument

    def _read(self, ids: Sequence[int], number: int) -> ToolCall:
        if any(i in self._ids.values() for i in ids):
            raise MalformedCall("A tool call must be plain text.")
        spec, argument = self._named(self._tokenizer.decode(ids))
        return ToolCall(spec.name, _arguments(spec, argument), id=f"call_{number}")

    def _named(self, text: str) -> tuple[ToolSpec, str]:
        """Which tool the text calls, and the argument that it gives."""
        name, colon, argument = text.partition(":")
        if colon and name in self._tools:
            return self._tools[name], argument
        if len(self._tools) == 1:
            return next(iter(self._tools.values())), text
        known = ", ".join(self._tools) or "none"
        raise MalformedCall(f"A tool call must name its tool before a colon; the tools are: {known}.")


def _split(ids: Sequence[int], separator: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for i in ids:
        if i == separator:
            parts.append([])
        else:
            parts[-1].append(i)
    return parts


def _only_parameter(spec: ToolSpec) -> str:
    """The name of a tool's parameter if it has exactly one, else ""."""
    names = list(spec.parameters.get("properties", {}))
    return names[0] if len(names) == 1 else ""


def _arguments(spec: ToolSpec, text: str) -> dict[str, Any]:
    only = _only_parameter(spec)
    if only and spec.parameters["properties"][only].get("type", "string") == "string":
        if not text and only in spec.parameters.get("required", ()):
            raise MalformedCall(f"The call of {spec.name} has no argument.")
        return {only: text} if text else {}
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise MalformedCall(f"The argument of {spec.name} is not valid JSON.") from error
    if only and not isinstance(value, dict):
        return {only: value}
    if not isinstance(value, dict):
        raise MalformedCall(f"The argument of {spec.name} must be a JSON object.")
    return value
