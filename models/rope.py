"""Rotary position embeddings (Su et al., 2021, arXiv:2104.09864), in Hugging Face's half-split convention."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from models.config import DecoderConfig, RopeScaling


def frequencies(config: DecoderConfig) -> np.ndarray:
    """Angle per position of each pair of dimensions: float32 [head_dim / 2]."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    plain = (1.0 / np.float32(config.rope_theta) ** exponents).astype(np.float32)
    return plain if config.rope_scaling is None else _stretch(plain, config.rope_scaling)


def _stretch(plain: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Llama 3.1's rule: slow frequencies divided by `factor`, fast ones kept, a linear blend between."""
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
    return (keep * plain + (1.0 - keep) * plain / scaling.factor).astype(np.float32)


def rotation(config: DecoderConfig, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines, float32 [B, T, head_dim / 2] each, for `positions` [B, T]."""
    angles = positions.astype(jnp.float32)[..., None] * frequencies(config)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, turn: tuple[jax.Array, jax.Array]) -> jax.Array:
    """`x` [B, T, heads, head_dim] turned by its positions; computed in float32, returned in the dtype of `x`."""
    cos, sin = (part[:, :, None, :] for part in turn)
    low, high = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1).astype(x.dtype)
