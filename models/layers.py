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
    """x [..., inputs] → x Wᵀ [..., outputs], plus a bias [outputs] where there is one."""

    def __init__(self, inputs: int, outputs: int, *, scale: float, rngs: nnx.Rngs, bias: bool = False) -> None:
        self.weight = normal(rngs, (outputs, inputs), scale)
        if bias:
            self.bias = nnx.Param(jnp.zeros((outputs,), jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        y = project(x, self.weight[...])
        return y + self.bias[...] if hasattr(self, "bias") else y

    def attend(self, x: jax.Array) -> jax.Array:
        """As an output head: float32 logits [..., outputs] of hidden states [..., inputs]."""
        return project(x, self.weight[...], jnp.float32)


class Embedding(nnx.Module):
    """A row per token; also the output head where the model ties the two."""

    def __init__(self, vocab: int, hidden: int, *, scale: float, rngs: nnx.Rngs) -> None:
        self.weight = normal(rngs, (vocab, hidden), scale)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return jnp.take(self.weight[...], tokens, axis=0, mode="clip")

    def attend(self, x: jax.Array) -> jax.Array:
        """Float32 logits [..., vocab] of hidden states [..., hidden]."""
        return project(x, self.weight[...], jnp.float32)


class RMSNorm(nnx.Module):
    """Root-mean-square normalisation (Zhang & Sennrich, 2019, arXiv:1910.07467), in float32 inside.

    With `unit_offset` it multiplies by 1 + weight, before the result is rounded to the dtype of `x` (Gemma).
    """

    def __init__(self, hidden: int, *, eps: float, unit_offset: bool = False) -> None:
        self.weight = nnx.Param((jnp.zeros if unit_offset else jnp.ones)((hidden,), jnp.float32))
        self.eps, self.unit_offset = eps, unit_offset

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        if self.unit_offset:
            return (wide * scale * (1.0 + self.weight[...].astype(jnp.float32))).astype(x.dtype)
        return self.weight[...] * (wide * scale).astype(x.dtype)


def project(x: jax.Array, weight: jax.Array, dtype: jnp.dtype | None = None) -> jax.Array:
    """x [..., inputs] times weight [outputs, inputs], contracted over the inputs; in `dtype`, or that of `x`."""
    contract = (((x.ndim - 1,), (1,)), ((), ()))
    return jax.lax.dot_general(x, weight, contract, precision=PRECISION, preferred_element_type=dtype)


def softcap(x: jax.Array, cap: float | None) -> jax.Array:
    """x kept within ± `cap` by a tanh, or as it is where there is no cap."""
    return x if cap is None else jnp.tanh(x / cap) * cap
