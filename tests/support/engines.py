"""Requests, and engines of the tiny model."""

import random

import jax
import numpy as np

from models.logprobs import token_logprobs
from models.pure import apply, init_params
from rollout.engine import Request, Sampling
from rollout.jax_engine import JaxEngine
from support.tiny import TINY, lively

CONTEXT = 128
POLICIES = [lively(init_params(TINY, seed=0), seed=s) for s in (1, 2)]


def text(token_ids):
    """A letter per token of the tiny model."""
    return "".join(chr(ord("A") + t) for t in token_ids)


def jax_engine(version=0, slots=4, max_length=CONTEXT, decode_steps=2, **options):
    params = POLICIES[version] if version >= 0 else None
    options = {"decode": text, **options}
    return JaxEngine(
        TINY, params, version=version, slots=slots, max_length=max_length, decode_steps=decode_steps, **options
    )


def stream(length, seed=0):
    draw = random.Random(f"stream {seed}")
    return tuple(draw.randrange(TINY.vocab_size) for _ in range(length))


PROMPT = stream(7)


def request(token_ids=PROMPT, session="s", seed=5, max_tokens=12, temperature=1.0, stop_ids=(), **more):
    """`more` is further parts of its sampling."""
    return Request(session, tuple(token_ids), Sampling(max_tokens, temperature, tuple(stop_ids), **more), seed)


def learner_logprobs(params, token_ids, count):
    """What the learner computes for the last `count` tokens of a stream."""
    logs, _ = _token_logprobs(TINY, params, *_padded(token_ids))
    return np.asarray(logs)[0, len(token_ids) - count : len(token_ids)]


def next_logits(params, token_ids):
    """Logits [V] of the token after a stream."""
    return np.asarray(_apply(TINY, params, *_padded(token_ids)))[0, len(token_ids) - 1]


def kept(logits, top_p, top_k):
    """Which tokens stay in, [V] booleans, by sorting: the likeliest k of all, then the fewest that reach p."""
    order = np.argsort(-logits, kind="stable")
    order = order[: top_k or None]
    mass = np.exp(logits[order] - logits[order].max(), dtype=np.float64)
    share = np.cumsum(mass) / mass.sum()
    order = order[: 1 + np.searchsorted(share, top_p)] if top_p < 1 else order
    return np.isin(np.arange(len(logits)), order)


_token_logprobs, _apply = (jax.jit(f, static_argnums=0) for f in (token_logprobs, apply))


def _padded(token_ids):
    """Tokens, positions and validity [1, T], T the context or as much more as it takes."""
    size = CONTEXT if len(token_ids) <= CONTEXT else 1024
    tokens, places = np.zeros((1, size), np.int32), np.arange(size)[None]
    tokens[0, : len(token_ids)] = token_ids
    return tokens, places, places < len(token_ids)
