"""ChatML (`<|im_start|>role … <|im_end|>`) with tool calls as Qwen and Hermes models write them.

Tools are described in the system message; a call is JSON between `<tool_call>` tags in the assistant's text; results go
between `<tool_response>` tags in a user turn. Ids equal those of the model's own template: control tokens split text,
so each piece between two of them can be tokenized by itself.

Where the model's template knows thinking (Qwen 3), a turn opens with `<think>…</think>`. The template forgets the
thinking of earlier questions, which would rewrite the stream; here it stays where it was sampled.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import ClassVar

from models.chat import ParsedTurn, control, format_digest
from models.chat_calls import read_tagged, tagged_answer, tagged_results, tagged_tools
from models.tokenizer import Tokenizer
from schemas.messages import Message, ToolSpec

DEFAULT_SYSTEM = re.compile(r"<\|im_start\|>system(?:\\n|\n)([^'\"{}]+?)<\|im_end\|>")
OPEN, CLOSE = "<think>", "</think>"


class ChatMLFormat:
    """Implements `ChatFormat` for tokenizers with `<|im_start|>` and `<|im_end|>`."""

    CONTROLS: ClassVar[tuple[str, ...]] = ("<|im_start|>", "<|im_end|>")

    def __init__(self, tokenizer: Tokenizer, tools: Sequence[ToolSpec]) -> None:
        self._tokenizer = tokenizer
        self._start, self._end = (control(tokenizer, name) for name in self.CONTROLS)
        template = tokenizer.chat_template
        self._system, self._thinks = default_system(template), CLOSE in template
        text_end = tokenizer.special("<|endoftext|>")
        self.stop_ids: tuple[int, ...] = (self._end,) if text_end is None else (self._end, text_end)
        self.digest = format_digest("chatml", tokenizer, tools, self._system, *[OPEN] * self._thinks)

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        given = bool(messages) and messages[0].role == "system"
        system = messages[0].content if given else self._system
        parts = [part for part in (system, tagged_tools(tools)) if part]
        opening = self._turn("system", "\n\n".join(parts)) if parts or given else []
        return [*opening, *self._turns(messages[1:] if given else messages), *self._header()]

    def continuation(self, messages: Sequence[Message]) -> list[int]:
        return [*self._tokenizer.encode("\n"), *self._turns(messages), *self._header()]

    def assistant(self, message: Message) -> list[int]:
        return [*self._tokenizer.encode(self._answer(message)), self._end]

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        ended = bool(ids) and ids[-1] in self.stop_ids
        text = self._tokenizer.decode(ids[:-1] if ended else ids)
        thinking, said = split_thinking(text) if self._thinks else ("", text)
        turn = read_tagged(said)
        return replace(turn, message=replace(turn.message, thinking=thinking))

    def _header(self) -> list[int]:
        return [self._start, *self._tokenizer.encode("assistant\n")]

    def _turn(self, role: str, content: str) -> list[int]:
        return [self._start, *self._tokenizer.encode(f"{role}\n{content}"), self._end, *self._tokenizer.encode("\n")]

    def _turns(self, messages: Sequence[Message]) -> list[int]:
        """Turns in order; tool messages that follow one another share a user turn."""
        out: list[int] = []
        for is_tool, group in groupby(messages, key=lambda message: message.role == "tool"):
            if is_tool:
                out += self._turn("user", tagged_results(list(group)))
            else:
                for message in group:
                    out += self._turn(message.role, self._answer(message))
        return out

    def _answer(self, message: Message) -> str:
        """A message's text with its calls, after its thinking where the model knows that."""
        if not (self._thinks and message.thinking):
            return tagged_answer(message)
        said = tagged_answer(replace(message, content=message.content.lstrip("\n")))
        return f"{OPEN}\n{message.thinking.strip(chr(10))}\n{CLOSE}\n\n{said}"


def default_system(template: str) -> str:
    """The system message that a model's Jinja template falls back to, "" where it has none."""
    found = DEFAULT_SYSTEM.search(template)
    return found[1] if found else ""


def split_thinking(text: str) -> tuple[str, str]:
    """A turn's thinking and what it says after that; all is thinking while the block is open."""
    if not text.lstrip().startswith(OPEN):
        return "", text
    thinking, _, said = text.lstrip().removeprefix(OPEN).partition(CLOSE)
    return thinking.strip("\n"), said.lstrip("\n")
