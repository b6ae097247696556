"""Every format gives the ids that transformers gives by the family's own template, and a stream is only extended.

Tokenizers, conversations and ids are made by `chats/make.py`.
"""

import re

import pytest
from support.chats import FOLDERS, TOKENIZERS, Conversation, conversations, of, references, stream

from models.chat_gemma import GemmaFormat
from models.chat_llama import LlamaFormat
from models.chatml import ChatMLFormat

FORMATS = {"smollm2": ChatMLFormat, "qwen": ChatMLFormat, "llama": LlamaFormat, "gemma": GemmaFormat}
DEPARTURES = {
    ("qwen3", "thinking of an earlier question"): r"<think>\nSeven sixes\.\n</think>\n\n",
    ("llama3_1", "thinking"): r"Let me see\.<\|python_tag\|>",
    ("llama3_2", "thinking"): r"Let me see\.<\|python_tag\|>",
}
"""Where a template drops what the model has said, or half of a turn, and we don't: what we have more."""

TALKS = {talk.name: talk for talk in conversations()}
WRITTEN = [
    pytest.param(folder.name, talk, ids, id=f"{folder.name}, {talk}")
    for folder in FOLDERS
    for talk, ids in references(folder.name).items()
    if ids is not None
]


@pytest.mark.parametrize(("name", "talk", "wanted"), WRITTEN)
def test_ids_are_those_of_the_template(name: str, talk: str, wanted: list[int]):
    written, tokenizer = of(name, TALKS[talk]), TOKENIZERS[name]
    assert type(written) is next(kind for family, kind in FORMATS.items() if name.startswith(family))
    ids = written.prompt(TALKS[talk].messages, TALKS[talk].tools)
    if more := DEPARTURES.get((name, talk)):
        less, count = re.subn(more, "", tokenizer.decode(ids))
        assert (less, count) == (tokenizer.decode(wanted), 1)
        return
    assert tokenizer.decode(ids) == tokenizer.decode(wanted)
    assert ids == wanted


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS.keys())
def test_a_stream_that_grew_is_the_prompt_of_its_messages(name: str, talk: Conversation):
    written = of(name, talk)
    assert stream(written, talk) == written.prompt(talk.messages, talk.tools)


@pytest.mark.parametrize("name", [folder.name for folder in FOLDERS])
def test_every_family_has_references(name: str):
    found = references(name)
    assert set(found) == set(TALKS)
    assert sum(ids is not None for ids in found.values()) >= 6
