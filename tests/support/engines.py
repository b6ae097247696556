"""Requests, and engines of the tiny model."""

import random

import jax.numpy as jnp
import numpy as np

from models.logprobs import token_logprobs
from models.pure import init_params
from rollout.engine import Request, Sampling
from rollout.jax_engine import JaxEngine
from support.tiny import TINY, lively

CONTEXT = 128
POLICIES = [lively(init_params(TINY, seed=0), seed=s) for s in (1, 2)]


def jax_engine(version=0, slots=4, max_length=CONTEXT, decode_steps=2):
    params = POLICIES[version] if version >= 0 else None
    return JaxEngine(TINY, params, version=version, slots=slots, max_length=max_length, decode_steps=decode_steps)


def stream(length, seed=0):
    draw = random.Random(f"stream {seed}")
    return tuple(draw.randrange(TINY.vocab_size) for _ in range(length))


def request(token_ids=stream(7), session="s", seed=5, max_tokens=12, temperature=1.0, stop_ids=()):
    return Request(session, tuple(token_ids), Sampling(max_tokens, temperature, tuple(stop_ids)), seed)


def learner_logprobs(params, token_ids, count):
    """What the learner computes for the last `count` tokens of a stream."""
    tokens = jnp.asarray([token_ids])
    positions = jnp.arange(len(token_ids))[None]
    logs, _ = token_logprobs(TINY, params, tokens, positions, jnp.ones_like(tokens, bool))
    return np.asarray(logs)[0, -count:]
