"""Tiny models: shapes, and parameters that let every part of them show."""

import dataclasses

import jax
import numpy as np

from models.config import DecoderConfig
from models.pure import Params
from models.rope_settings import RopeScaling

TINY = DecoderConfig(
    vocab_size=37, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=6, max_position_embeddings=64,
)  # fmt: skip
STRETCHED = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
VARIANTS = {
    "tied": TINY,
    "untied": dataclasses.replace(TINY, tie_word_embeddings=False, rope_theta=50.0, rope_scaling=STRETCHED),
}


def lively(params: Params, seed: int = 1) -> Params:
    """Parameters large and uneven enough that every part of the model shows in its logits."""
    draw = np.random.default_rng(seed)
    return jax.tree.map(lambda x: x + draw.normal(0, 0.3, x.shape).astype(np.float32), params)
