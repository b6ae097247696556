"""Rotary position embeddings (Su et al., 2021, arXiv:2104.09864), in Hugging Face's half-split convention."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from models.config import DecoderConfig
from models.rope_settings import LinearScaling, RopeScaling


def frequencies(config: DecoderConfig, *, local: bool = False) -> np.ndarray:
    """Angle per position of each pair of dimensions: float32 [head_dim / 2]; `local` in layers with a window."""
    if local and config.local_rope_theta is not None:
        return _plain(config.local_rope_theta, config.head_dim)
    plain, scaling = _plain(config.rope_theta, config.head_dim), config.rope_scaling
    if isinstance(scaling, LinearScaling):
        return (plain / np.float32(scaling.factor)).astype(np.float32)
    return plain if scaling is None else _stretch(plain, scaling)


def _plain(theta: float, size: int) -> np.ndarray:
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    return (1.0 / np.float32(theta) ** exponents).astype(np.float32)


def _stretch(plain: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Llama 3.1's rule: slow frequencies divided by `factor`, fast ones kept, a linear blend between."""
    turns = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
    return (keep * plain + (1.0 - keep) * plain / scaling.factor).astype(np.float32)


def rotation(config: DecoderConfig, positions: jax.Array, *, local: bool = False) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines, float32 [B, T, head_dim / 2] each, for `positions` [B, T]."""
    angles = positions.astype(jnp.float32)[..., None] * frequencies(config, local=local)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, turn: tuple[jax.Array, jax.Array]) -> jax.Array:
    """`x` [B, T, heads, head_dim] turned by its positions; computed in float32, returned in the dtype of `x`."""
    cos, sin = (part[:, :, None, :] for part in turn)
    low, high = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1).astype(x.dtype)
