"""Probes as a learner makes them."""

from typing import Any

import numpy as np

from models.config import DecoderConfig
from models.logprobs import token_logprobs
from schemas.manifest import Probe


def learner_probe(config: DecoderConfig, params: Any, count: int = 24) -> Probe:
    """What the learner computes for `count` tokens spread over the vocabulary."""
    tokens, places = (np.arange(count) * 7919 + 13) % config.vocab_size, np.arange(count)[None]
    logprobs, _ = token_logprobs(config, params, tokens.astype(np.int32)[None], places, places >= 0)
    return Probe(tokens=tuple(tokens.tolist()), logprobs=tuple(np.asarray(logprobs)[0, 1:].tolist()))
