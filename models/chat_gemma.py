"""Gemma's turns: `<start_of_turn>user` or `model`, a newline, the text, `<end_of_turn>`, a newline.

There is no system turn: its text stands before the first user's. Gemma 2 and 3 have no tool format of their own, so
tools are described there too, and calls and results are tagged as in ChatML (`models.chat_calls`).
"""

from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar

from models.chat import ParsedTurn, control, format_digest
from models.chat_calls import read_tagged, tagged_answer, tagged_results, tagged_tools
from models.tokenizer import Tokenizer
from schemas.messages import Message, ToolSpec


class GemmaFormat:
    """Implements `ChatFormat` for Gemma 2 and 3."""

    CONTROLS: ClassVar[tuple[str, ...]] = ("<start_of_turn>", "<end_of_turn>", "<bos>")

    def __init__(self, tokenizer: Tokenizer, tools: Sequence[ToolSpec]) -> None:
        self._tokenizer = tokenizer
        self._start, self._end, self._begin = (control(tokenizer, name) for name in self.CONTROLS)
        text_end = tokenizer.special("<eos>")
        self.stop_ids: tuple[int, ...] = (self._end,) if text_end is None else (self._end, text_end)
        self.digest = format_digest("gemma", tokenizer, tools)

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        given = bool(messages) and messages[0].role == "system"
        parts = [part for part in (messages[0].content if given else "", tagged_tools(tools)) if part]
        before, rest = "".join(f"{part}\n\n" for part in parts), list(messages[1:] if given else messages)
        if before and (not rest or rest[0].role == "assistant"):
            rest = [Message("user"), *rest]
        return [self._begin, *self._turns(rest, before), *self._header()]

    def continuation(self, messages: Sequence[Message]) -> list[int]:
        return [*self._tokenizer.encode("\n"), *self._turns(messages), *self._header()]

    def assistant(self, message: Message) -> list[int]:
        return [*self._tokenizer.encode(tagged_answer(message).strip()), self._end]

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        ended = bool(ids) and ids[-1] in self.stop_ids
        return read_tagged(self._tokenizer.decode(ids[:-1] if ended else ids))

    def _header(self) -> list[int]:
        return [self._start, *self._tokenizer.encode("model\n")]

    def _turns(self, messages: Sequence[Message], before: str = "") -> list[int]:
        """Turns in order, the first with the text `before` it; neighbouring tool messages share a user turn."""
        out: list[int] = []
        for is_tool, group in groupby(messages, key=lambda message: message.role == "tool"):
            for said in [tagged_results(list(group))] if is_tool else [*group]:
                if isinstance(said, Message) and said.role == "assistant":
                    out += [*self._header(), *self.assistant(said), *self._tokenizer.encode("\n")]
                    continue
                text = said if isinstance(said, str) else said.content.strip()
                ids = self._tokenizer.encode(f"user\n{before}{text}")
                out += [self._start, *ids, self._end, *self._tokenizer.encode("\n")]
                before = ""
        return out
