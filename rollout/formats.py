"""Chat formats by the tools that a request offers."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from models.chat import ChatFormat, chat_format
from models.tokenizer import Tokenizer
from schemas.messages import ToolSpec

KEPT = 64
"""A program that offers other tools in every request must not fill the memory."""


class ChatFormats:
    """Makes the format of a set of tools, once for as long as it is among the newest."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._known: dict[str, ChatFormat] = {}
        self.newest: ChatFormat | None = None
        """What was asked for last."""

    def of(self, tools: Sequence[ToolSpec]) -> ChatFormat:
        """The format; RequestError where the tokenizer fits none."""
        name = json.dumps([asdict(tool) for tool in tools])
        found = self._known.pop(name, None) or chat_format(self.tokenizer, tools)
        self._known[name] = self.newest = found
        if len(self._known) > KEPT:
            del self._known[next(iter(self._known))]
        return found
