"""Llama 3's turns: `<|start_header_id|>role<|end_header_id|>`, a blank line, the text, `<|eot_id|>`.

From Llama 3.1 on, the system turn is always there and opens with two dates. The template of Llama 3.2 puts today's date
into it; here it is the date that the template falls back to, so that a prompt is the same tomorrow.

Tools are described in the first user turn. A call is a bare JSON object with `name` and `parameters` and is the whole
turn; results come in turns of the role `ipython`, as JSON. Beyond the template, which takes one call a turn and no text
beside it: further calls follow a `;`, and text stands before a call if `<|python_tag|>` is between them.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from models.chat import ParsedTurn, control, format_digest
from models.chat_calls import MalformedCall, call_of, dumped, object_of, signature
from models.tokenizer import Tokenizer
from schemas.errors import RequestError
from schemas.messages import Message, ToolSpec

TOOLS = (
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best"
    " answers the given prompt.\n\n"
    'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'
    "Do not use variables.\n\n"
)
CUTOFF, TODAY = re.compile(r"Cutting Knowledge Date: \w+ \d+"), re.compile(r'date_string = "([^"]+)"')
ROLES = {"tool": "ipython"}


class LlamaFormat:
    """Implements `ChatFormat` for Llama 3 to 3.3. Calls are looked for where tools are offered."""

    CONTROLS: ClassVar[tuple[str, ...]] = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")

    def __init__(self, tokenizer: Tokenizer, tools: Sequence[ToolSpec]) -> None:
        self._tokenizer, self._calls = tokenizer, bool(tools)
        self._open, self._close, self._end = (control(tokenizer, name) for name in self.CONTROLS)
        self._begin, self._tag = (_optional(tokenizer, name) for name in ("<|begin_of_text|>", "<|python_tag|>"))
        further = (_optional(tokenizer, name) for name in ("<|eom_id|>", "<|end_of_text|>"))
        self.stop_ids: tuple[int, ...] = (self._end, *[i for ids in further for i in ids])
        self._dates = _dates(tokenizer.chat_template)
        self.digest = format_digest("llama", tokenizer, tools, self._dates)

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        given = bool(messages) and messages[0].role == "system"
        system, rest = (messages[0].content.strip() if given else ""), list(messages[1:] if given else messages)
        shell = "Environment: ipython\n" if tools and self._dates else ""
        opening = self._turn("system", f"{shell}{self._dates}{system}") if given or self._dates else []
        if tools:
            opening += self._turn("user", _described(tools) + _question(rest))
            rest = rest[1:]
        return [*self._begin, *opening, *self.continuation(rest)]

    def continuation(self, messages: Sequence[Message]) -> list[int]:
        return [*[i for message in messages for i in self._written(message)], *self._header("assistant", "")]

    def assistant(self, message: Message) -> list[int]:
        calls = "; ".join(object_of(call, "parameters") for call in message.tool_calls)
        text = self._tokenizer.encode(message.content.strip())
        tag = self._tag if text and calls else []
        if text and calls and not tag:
            raise RequestError("the model's tokenizer has no <|python_tag|>, so a turn holds text or calls, not both.")
        return [*text, *tag, *self._tokenizer.encode(calls), self._end]

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        said = list(ids[:-1]) if ids and ids[-1] in self.stop_ids else list(ids)
        text, tag = self._tokenizer.decode(said), next((p for p, i in enumerate(said) if i in self._tag), None)
        if not self._calls or (tag is None and not text.lstrip().startswith("{")):
            return _plain(text)
        if tag is None:
            return _read("", text, answer=True)
        content, call = self._tokenizer.decode(said[:tag]), self._tokenizer.decode(said[tag + 1 :])
        return _read(content.rstrip(), call, answer=False)

    def _written(self, message: Message) -> list[int]:
        if message.role == "assistant":
            return [*self._header("assistant", ""), *self.assistant(message)]
        content = dumped(message.content) if message.role == "tool" else message.content.strip()
        return self._turn(ROLES.get(message.role, message.role), content)

    def _turn(self, role: str, content: str) -> list[int]:
        return [*self._header(role, content), self._end]

    def _header(self, role: str, content: str) -> list[int]:
        return [self._open, *self._tokenizer.encode(role), self._close, *self._tokenizer.encode(f"\n\n{content}")]


def _optional(tokenizer: Tokenizer, name: str) -> list[int]:
    """The id of a control token, or nothing where the tokenizer lacks it."""
    number = tokenizer.special(name)
    return [] if number is None else [number]


def _dates(template: str) -> str:
    """The dates that the system turn opens with, "" before Llama 3.1."""
    cutoff, today = CUTOFF.search(template), TODAY.findall(template)
    return f"{cutoff[0]}\nToday Date: {today[-1]}\n\n" if cutoff and today else ""


def _described(tools: Sequence[ToolSpec]) -> str:
    return TOOLS + "".join(f"{dumped(signature(tool), indent=4)}\n\n" for tool in tools)


def _question(messages: Sequence[Message]) -> str:
    if not messages or messages[0].role != "user":
        raise RequestError(
            "Llama 3 is told of its tools in the first user message, and the conversation opens with none: add one."
        )
    return messages[0].content.strip()


def _plain(text: str) -> ParsedTurn:
    return ParsedTurn(Message("assistant", text))


def _read(content: str, text: str, *, answer: bool) -> ParsedTurn:
    """A turn that calls, or tries to; `answer`: an object without a name is no call but an answer in JSON."""
    try:
        values = _objects(text)
        if answer and isinstance(values[0], dict) and "name" not in values[0]:
            return _plain(text)
        calls = tuple(call_of(value, number, "parameters") for number, value in enumerate(values))
    except MalformedCall as error:
        return ParsedTurn(Message("assistant", content), str(error))
    return ParsedTurn(Message("assistant", content, tool_calls=calls))


def _objects(text: str) -> list[Any]:
    """The JSON values of a turn, between which a `;` or `,` may stand. MalformedCall where it is anything else."""
    found, rest = [], text.strip()
    try:
        while rest or not found:
            value, end = json.JSONDecoder().raw_decode(rest)
            found.append(value)
            rest = rest[end:].lstrip().removeprefix(";").removeprefix(",").lstrip()
    except (ValueError, RecursionError) as error:
        raise MalformedCall("A tool call is not valid JSON.") from error
    return found
