"""A token stream as people read it: its trained and untrained spans in turn, control tokens by their names."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from models.chat import ChatFormat
from models.tokenizer import Tokenizer


@dataclass(frozen=True)
class Span:
    """Neighbouring tokens of which all are trained, or none is."""

    trained: bool
    tokens: int
    text: str


def spans(tokens: Sequence[int], mask: Sequence[bool], tokenizer: Tokenizer, chat: ChatFormat) -> list[Span]:
    """The spans of a stream. `mask` says of each token whether it is trained."""
    found = groupby(zip(tokens, mask, strict=True), key=lambda pair: pair[1])
    parts = [(trained, [token for token, _ in pairs]) for trained, pairs in found]
    return [Span(trained, len(ids), written(ids, tokenizer, chat)) for trained, ids in parts]


def written(ids: Sequence[int], tokenizer: Tokenizer, chat: ChatFormat) -> str:
    """The text of token ids, decoded between the control tokens, which `decode` may leave out."""
    names = getattr(chat, "CONTROLS", ())
    controls = {number: name for name in names if (number := tokenizer.special(name)) is not None}
    parts = groupby(ids, key=controls.get)
    return "".join(name * len(list(run)) if name else tokenizer.decode(list(run)) for name, run in parts)
