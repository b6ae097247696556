"""A small tokenizer of each family, with its template and the ids that transformers gives by it."""

import json
from dataclasses import dataclass
from pathlib import Path

from models.chat import ChatFormat, chat_format
from models.tokenizer import Tokenizer, tokenizer_from_files
from schemas.data import messages, tools
from schemas.messages import Message, ToolSpec
from support.tokenizing import BYTES

CHATS = Path(__file__).parents[1] / "models/chats"
FOLDERS = sorted(path.parent for path in CHATS.glob("*/reference.json"))


@dataclass(frozen=True)
class Conversation:
    """One that ends where the model is to speak, and the tools that it offers."""

    name: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]


def conversations() -> list[Conversation]:
    held = json.loads((CHATS / "conversations.json").read_text())
    return [Conversation(c["name"], messages(c["messages"], "a test"), tools(c.get("tools"), "a test")) for c in held]


def tokenizer_of(name: str) -> Tokenizer:
    """The tokenizer in a folder of `tests/models/chats`."""
    folder = CHATS / name
    return tokenizer_from_files(lambda file: (folder / file).read_bytes(), [p.name for p in folder.iterdir()], name)


TOKENIZERS: dict[str, Tokenizer] = {"ours": BYTES} | {folder.name: tokenizer_of(folder.name) for folder in FOLDERS}


def references(name: str) -> dict[str, list[int] | None]:
    """Conversation → its ids by the family's template, None where that refuses it."""
    return json.loads((CHATS / name / "reference.json").read_text())


def stream(chat: ChatFormat, conversation: Conversation) -> list[int]:
    """The conversation as an episode would build it up: nothing fed or sampled is ever changed."""
    said, turns = conversation.messages, [i for i, m in enumerate(conversation.messages) if m.role == "assistant"]
    ids = chat.prompt(said[: turns[0]] if turns else said, conversation.tools)
    for place, following in zip(turns, [*turns, len(said)][1:], strict=True):
        ids += chat.assistant(said[place]) + chat.continuation(said[place + 1 : following])
    return ids


def of(name: str, conversation: Conversation) -> ChatFormat:
    return chat_format(TOKENIZERS[name], conversation.tools)
