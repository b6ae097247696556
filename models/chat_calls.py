"""Tools and their calls as JSON text, alike in every format that writes them so.

A tool is described as transformers describes it to a model's template. A call is a JSON object with a name and its
arguments; between `<tool_call>` tags as Hermes and Qwen write it (ChatML, and Gemma, which has no form of its own), or
bare (Llama). Whatever a model writes is read without raising: what is wrong becomes a sentence for the model.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from models.chat import ParsedTurn
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
_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class MalformedCall(Exception):
    """A call that cannot be read; the text is for the model."""


def signature(tool: ToolSpec) -> dict[str, Any]:
    """The tool as the function object that templates are given."""
    described = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": described}


def dumped(value: Any, indent: int | None = None) -> str:
    """JSON as the templates' `tojson` writes it."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def tagged_tools(tools: Sequence[ToolSpec]) -> str:
    """What a model is told of its tools and of tagged calls; "" where there are none."""
    lines = "\n".join(dumped(signature(tool)) for tool in tools)
    return TOOLS.format(signatures=lines) if tools else ""


def tagged_answer(message: Message) -> str:
    """A message's text with its calls between tags."""
    calls = (f"<tool_call>\n{object_of(call, 'arguments')}\n</tool_call>" for call in message.tool_calls)
    return "\n".join(part for part in (message.content, *calls) if part)


def tagged_results(messages: Sequence[Message]) -> str:
    """Results of calls, as one turn holds them."""
    return "\n".join(f"<tool_response>\n{message.content}\n</tool_response>" for message in messages)


def read_tagged(text: str) -> ParsedTurn:
    """Text before the first tag is content; what lies between calls and after them is dropped."""
    content, opening, _ = text.partition("<tool_call>")
    if not opening:
        return ParsedTurn(Message("assistant", text))
    try:
        if "<tool_call>" in _TAGGED.sub("", text):
            raise MalformedCall("A <tool_call> was not closed.")
        calls = tuple(call_of(value_of(body), number) for number, body in enumerate(_TAGGED.findall(text)))
    except MalformedCall as error:
        return ParsedTurn(Message("assistant", content.rstrip()), str(error))
    return ParsedTurn(Message("assistant", content.rstrip(), tool_calls=calls))


def object_of(call: ToolCall, key: str) -> str:
    """A call as JSON text, its arguments under `key`."""
    return f'{{"name": {dumped(call.name)}, "{key}": {dumped(call.arguments)}}}'


def value_of(text: str) -> Any:
    """What JSON text says. MalformedCall where it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedCall("A tool call is not valid JSON.") from error


def call_of(value: Any, number: int, key: str = "arguments") -> ToolCall:
    """The call that a JSON value describes. MalformedCall where it describes none."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise MalformedCall(f'A tool call must be an object with "name" and "{key}".')
    arguments = value.get(key, value.get("arguments", {}))
    if not isinstance(arguments, dict):
        raise MalformedCall(f"The {key} of a tool call must be a JSON object.")
    return ToolCall(value["name"], arguments, id=f"call_{number}")
