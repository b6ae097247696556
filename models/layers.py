"""The weights of the decoder as Flax NNX modules, named and shaped as in Hugging Face files (rows are outputs)."""

import jax
import jax.numpy as jnp
from flax import nnx

# On accelerators float32 products are rounded to fewer bits by default; engine and learner must agree to 1e-6.
PRECISION = jax.lax.Precision.HIGHEST


def normal(rngs: nnx.Rngs, shape: tuple[int, ...], scale: float) -> nnx.Param:
    """A float32 parameter drawn from N(0, scale²)."""
    return nnx.Param(scale * jax.random.normal(rngs.params(), shape, jnp.float32))


class Linear(nnx.Module):
    """x [..., inputs] → x Wᵀ [..., outputs]; no bias."""

    def __init__(self, inputs: int, outputs: int, *, scale: float, rngs: nnx.Rngs) -> None:
        self.weight = normal(rngs, (outputs, inputs), scale)

    def __call__(self, x: jax.Array) -> jax.Array:
        return project(x, self.weight[...])


class Embedding(nnx.Module):
    """A row per token; also the output head where the model ties the two."""

    def __init__(self, vocab: int, hidden: int, *, scale: float, rngs: nnx.Rngs) -> None:
        self.weight = normal(rngs, (vocab, hidden), scale)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return jnp.take(self.weight[...], tokens, axis=0, mode="clip")

    def attend(self, x: jax.Array) -> jax.Array:
        """Logits [..., vocab] of hidden states [..., hidden]."""
        return project(x, self.weight[...])


class RMSNorm(nnx.Module):
    """Root-mean-square normalisation (Zhang & Sennrich, 2019, arXiv:1910.07467), in float32 inside."""

    def __init__(self, hidden: int, *, eps: float) -> None:
        self.weight = nnx.Param(jnp.ones((hidden,), jnp.float32))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return self.weight[...] * (wide * scale).astype(x.dtype)


def project(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x [..., inputs] times weight [outputs, inputs], contracted over the inputs."""
    return jax.lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())), precision=PRECISION)
