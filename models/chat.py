"""Conversations as token streams: what every chat format offers, and which one a tokenizer takes.

A stream is only ever extended: the prompt, then what the model sampled, then the continuation, and so on. Sampled ids
stay as they were sampled; nothing is decoded and tokenized again.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from models.tokenizer import Tokenizer
from schemas.errors import RequestError
from schemas.messages import Message, ToolSpec


@dataclass(frozen=True)
class ParsedTurn:
    """What a sampled turn says."""

    message: Message
    error: str = ""
    """What is malformed in its tool calls, in a sentence for the model; "" where nothing is."""


class ChatFormat(Protocol):
    """Writes turns as ids and reads sampled turns. Rollouts use all but `assistant`, which SFT trains."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn; they are part of it and are trained."""
        ...

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the format, its tokenizer and its tools."""
        ...

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """The start of a conversation, up to and with the assistant's header."""
        ...

    def continuation(self, messages: Sequence[Message]) -> list[int]:
        """What follows an assistant turn that ended in a stop id, up to and with the next assistant's header."""
        ...

    def assistant(self, message: Message) -> list[int]:
        """An assistant turn as a model should sample it after its header, with the stop id."""
        ...

    def parse(self, ids: Sequence[int]) -> ParsedTurn:
        """The message that sampled ids mean. Never raises: what cannot be read becomes `error`."""
        ...


def chat_format(tokenizer: Tokenizer, tools: Sequence[ToolSpec]) -> ChatFormat:
    """The format that fits the tokenizer's control tokens, for one set of tools. RequestError where none does.

    Where the tokens of several formats are there (ChatML's are often added to a Llama), the stored template decides.
    """
    from models.chat_gemma import GemmaFormat
    from models.chat_llama import LlamaFormat
    from models.chat_tags import TagFormat
    from models.chatml import ChatMLFormat

    kinds = (TagFormat, ChatMLFormat, LlamaFormat, GemmaFormat)
    fitting = [kind for kind in kinds if all(tokenizer.special(name) is not None for name in kind.CONTROLS)]
    if not fitting:
        raise RequestError(
            "the model's tokenizer has the control tokens of no chat format (ChatML's <|im_start|>, Llama 3's"
            " <|start_header_id|>, Gemma's <start_of_turn>, or ours), so conversations cannot be written for it: use a"
            " chat model of a supported family."
        )
    named = [kind for kind in fitting if kind.CONTROLS[0] in tokenizer.chat_template]
    return (named if len(fitting) > 1 and named else fitting)[0](tokenizer, tools)


def control(tokenizer: Tokenizer, name: str) -> int:
    """The id of a control token that the tokenizer is known to have."""
    number = tokenizer.special(name)
    if number is None:
        raise RequestError(f"the model's tokenizer has no token {name}, which its chat format needs.")
    return number


def format_digest(name: str, tokenizer: Tokenizer, tools: Sequence[ToolSpec], *settings: str) -> str:
    """SHA-256 (hex) over what decides how a format writes and reads."""
    parts = [name, tokenizer.digest, [asdict(tool) for tool in tools], list(settings)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
