"""Preference pairs as token streams and as padded arrays of one fixed shape."""

from collections.abc import Sequence
from typing import Generic, NamedTuple

import numpy as np

from models.tokenizer import Tokenizer
from schemas.data import Preference
from schemas.errors import RequestError
from trainer.batch import Array
from trainer.sft_data import Example, Formats, stream

Pair = tuple[Example, Example]
"""The streams of the chosen and of the rejected side, each with the prompt before it."""


class Pairs(NamedTuple, Generic[Array]):
    """P pairs; of the second axis 0 is the chosen side and 1 the rejected one. Streams are padded to T tokens."""

    tokens: Array
    """[P, 2, T] int32."""
    valid: Array
    """[P, 2, T] bool: false at padding."""
    mask: Array
    """[P, 2, T] float32: 1 where a token is the assistant's."""
    reference: Array
    """[P, 2] float32: summed log-probs of those tokens under the reference policy; 0 where there is none."""


def encode_pairs(preferences: Sequence[Preference], tokenizer: Tokenizer, length: int) -> list[Pair]:
    """Every pair's streams. RequestError names the first that is longer than `length` tokens or has equal sides."""
    formats = Formats(tokenizer)
    return [_encode(p, formats, length) for p in preferences]


def _encode(pair: Preference, formats: Formats, length: int) -> Pair:
    chat = formats.of(pair.tools)
    chosen, rejected = (stream(pair.prompt, s, pair.tools, chat, pair.place) for s in (pair.chosen, pair.rejected))
    for name, (tokens, _) in (("chosen", chosen), ("rejected", rejected)):
        if len(tokens) > length:
            raise RequestError(
                f"{pair.place}: prompt and `{name}` have {len(tokens)} tokens, more than max_length = {length}: "
                f"raise it or shorten the pair"
            )
    if chosen == rejected:
        raise RequestError(f"{pair.place}: `chosen` and `rejected` are the same to the model: leave the pair out")
    return chosen, rejected


def collate_pairs(pairs: Sequence[Pair], length: int, reference: np.ndarray | None = None) -> Pairs[np.ndarray]:
    """Pairs as padded arrays. `reference` [P, 2]: what the reference policy gives them."""
    shape = (len(pairs), 2, length)
    out = Pairs(
        tokens=np.zeros(shape, np.int32),
        valid=np.zeros(shape, np.bool_),
        mask=np.zeros(shape, np.float32),
        reference=np.zeros(shape[:2], np.float32) if reference is None else reference.astype(np.float32),
    )
    for p, pair in enumerate(pairs):
        for s, (tokens, mask) in enumerate(pair):
            out.tokens[p, s, : len(tokens)] = tokens
            out.valid[p, s, : len(tokens)] = True
            out.mask[p, s, : len(tokens)] = mask
    return out
