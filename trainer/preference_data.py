"""Preference pairs as padded arrays of one fixed shape."""

from collections.abc import Sequence
from typing import Generic, NamedTuple

import numpy as np

from trainer.batch import Array
from trainer.streams import Pair


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
