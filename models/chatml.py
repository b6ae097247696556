"""ChatML (`<|im_start|>role … <|im_end|>`) with tool calls as Qwen and Hermes models write them.

Tools are described in the system message; a call is JSON between `<tool_call>` tags in the assistant's text; results go
between `<tool_response>` tags in a user turn. Ids equal those of the model's own template: control tokens split text,
so each piece between two of them can be tokenized by itself.
"""

import json
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any, ClassVar

from models.chat import ParsedTurn, control, format_digest
from models.tokenizer import Tokenizer
from schemas.messages import Message, ToolCall, ToolSpec

TOOLS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{signatures}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
DEFAULT_SYSTEM = re.compile(r"<\|im_start\|>system(?:\\n|\n)([^'\"{}]+?)<\|im_end\|>")


class ChatMLFormat:
    """Implements `ChatFormat` for tokenizers with `<|im_start|>` and `<|im_end|>`."""

    CONTROLS: ClassVar[tuple[str, ...]] = ("<|im_start|>", "<|im_end|>")

    def __init__(self, tokenizer: Tokenizer, tools: Sequence[ToolSpec]) -> None:
        self._tokenizer = tokenizer
        self._start, self._end = (control(tokenizer, name) for name in self.CONTROLS)
        self._system = default_system(getattr(tokenizer, "chat_template", ""))
        text_end = tokenizer.special("<|endoftext|>")
        self.stop_ids: tuple[int, ...] = (self._end,) if text_end is None else (self._end, text_end)
        self.digest = format_digest("chatml", tokenizer, tools, self._system)

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        given = bool(messages) and messages[0].role == "system"
        system = messages[0].content if given else self._system
        parts = [part for part in (system, _described(tools)) if part]
        opening = self._turn("system", "\n\n".join(parts)) if parts or given else []
        return [*opening, *self._turns(messages[1:] if given else messages), *self._header()]

    def continuation(self, messages: Sequence[Message]) -> list[int]:
        return [*self._tokenizer.encode("\n"), *self._turns(messages), *self._header()]

    def assistant(self, message: Message) -> list[int]:
        return [*self._tokenizer.encode(_answer(message)), self._end]

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        ended = bool(ids) and ids[-1] in self.stop_ids
        text = self._tokenizer.decode(ids[:-1] if ended else ids)
        content, opening, _ = text.partition("<tool_call>")
        if not opening:
            return ParsedTurn(Message("assistant", text))
        found = CALL.findall(text)
        try:
            if CALL.sub("", text).count("<tool_call>"):
                raise ValueError("A <tool_call> was not closed.")
            calls = tuple(_read(body, number) for number, body in enumerate(found))
        except ValueError as error:
            return ParsedTurn(Message("assistant", content.rstrip()), str(error))
        return ParsedTurn(Message("assistant", content.rstrip(), tool_calls=calls))

    def _header(self) -> list[int]:
        return [self._start, *self._tokenizer.encode("assistant\n")]

    def _turn(self, role: str, content: str) -> list[int]:
        return [self._start, *self._tokenizer.encode(f"{role}\n{content}"), self._end, *self._tokenizer.encode("\n")]

    def _turns(self, messages: Sequence[Message]) -> list[int]:
        """Turns in order; tool messages that follow one another share a user turn."""
        out: list[int] = []
        for is_tool, group in groupby(messages, key=lambda message: message.role == "tool"):
            if is_tool:
                results = (f"<tool_response>\n{message.content}\n</tool_response>" for message in group)
                out += self._turn("user", "\n".join(results))
            else:
                for message in group:
                    out += self._turn(message.role, _answer(message))
        return out


def default_system(template: str) -> str:
    """The system message that a model's Jinja template falls back to, "" where it has none."""
    found = DEFAULT_SYSTEM.search(template)
    return found[1] if found else ""


def _described(tools: Sequence[ToolSpec]) -> str:
    signature = lambda tool: {  # noqa: E731
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }
    lines = "\n".join(json.dumps(signature(tool), ensure_ascii=False) for tool in tools)
    return TOOLS.format(signatures=lines) if tools else ""


def _answer(message: Message) -> str:
    """A message's text with its calls."""
    return "\n".join(part for part in (message.content, *map(_written, message.tool_calls)) if part)


def _written(call: ToolCall) -> str:
    name, arguments = json.dumps(call.name), json.dumps(call.arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def _read(body: str, number: int) -> ToolCall:
    """The call that JSON text describes. ValueError with a sentence for the model."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError("A tool call is not valid JSON.") from error
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError('A tool call must be an object with "name" and "arguments".')
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        raise ValueError("The arguments of a tool call must be a JSON object.")
    return ToolCall(value["name"], arguments, id=f"call_{number}")
