"""The decoder: a Llama-style transformer (Touvron et al., 2023, arXiv:2302.13971) as a Flax NNX module.

One body serves training (a whole padded batch), pre-fill (chunks) and decoding (one token): they differ only in where
each layer's keys and values come from. Attributes are named as in Hugging Face files, so weights map by path.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from models.attention import Attention
from models.cache import KVCache, write
from models.config import DecoderConfig
from models.layers import Embedding, Linear, RMSNorm
from models.rope import rotation

PlaceLayer = Callable[[int, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


class MLP(nnx.Module):
    """SwiGLU (Shazeer, 2020, arXiv:2002.05202)."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = Linear(hidden, inner, scale=config.initializer_range, rngs=rngs)
        self.up_proj = Linear(hidden, inner, scale=config.initializer_range, rngs=rngs)
        self.down_proj = Linear(inner, hidden, scale=config.residual_scale, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nnx.Module):
    """Attention and MLP, each on a normalised copy and added back."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        self.self_attn = Attention(config, rngs=rngs)
        self.mlp = MLP(config, rngs=rngs)
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Body(nnx.Module):
    """Embeddings, layers and the last norm: what Hugging Face files call `model`."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, scale=config.initializer_range, rngs=rngs)
        self.layers = nnx.List([Layer(config, rngs=rngs) for _ in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class Decoder(nnx.Module):
    """The language model. Parameters are float32 when made; it computes in the dtype of its parameters."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.model = Body(config, rngs=rngs)
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size, scale=config.initializer_range, rngs=rngs)

    def __call__(self, tokens: jax.Array, positions: jax.Array, valid: jax.Array) -> jax.Array:
        """Logits [B, T, V] of the token after each of `tokens` [B, T]; padding (not `valid`) is to the right."""
        return self.head(self.hidden(tokens, positions, valid))

    def hidden(self, tokens: jax.Array, positions: jax.Array, valid: jax.Array) -> jax.Array:
        """Hidden states [B, T, hidden] after the last norm: what `head` turns into logits."""
        causal = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))
        return self._run(tokens, positions, causal & valid[:, None, :], lambda _, key, value: (key, value))

    def head(self, hidden: jax.Array) -> jax.Array:
        """Logits [..., V] of hidden states [..., hidden]."""
        return self.model.embed_tokens.attend(hidden) if self.config.tie_word_embeddings else self.lm_head(hidden)

    def extend(
        self, tokens: jax.Array, cache: KVCache, lengths: jax.Array, counts: jax.Array, *, last_only: bool = False
    ) -> tuple[jax.Array, KVCache]:
        """Appends tokens to cached rows; one function for chunked pre-fill (C > 1) and decoding (C = 1).

        Row b holds `lengths[b]` tokens; the first `counts[b]` of its C new `tokens` [B, C] are real and are written at
        `lengths[b]` and after; the rest leave no trace in the cache. Returns logits [B, C, V] (those of tokens that are
        not real mean nothing), or with `last_only` those of each row's last real token, [B, V], and the longer cache.
        The caller sees to it that `lengths + counts` stays within the cache; what lies beyond it is not written.
        """
        steps = jnp.arange(tokens.shape[1])
        slots = jnp.arange(cache.length)
        offset = slots - lengths[:, None]
        source = jnp.where((offset >= 0) & (offset < counts[:, None]), offset, -1)
        positions = lengths[:, None] + steps
        keys, values = list(cache.keys), list(cache.values)

        def place(layer: int, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array]:
            keys[layer], values[layer] = write(keys[layer], values[layer], (key, value), source)
            return keys[layer], values[layer]

        hidden = self._run(tokens, positions, slots <= positions[:, :, None], place)
        if last_only:
            last = jnp.maximum(counts - 1, 0)[:, None, None]
            hidden = jnp.take_along_axis(hidden, last, axis=1)[:, 0]
        return self.head(hidden), KVCache(tuple(keys), tuple(values))

    def _run(self, tokens: jax.Array, positions: jax.Array, mask: jax.Array, place: PlaceLayer) -> jax.Array:
        x = self.model.embed_tokens(tokens)
        turn = rotation(self.config, positions)
        for number, layer in enumerate(self.model.layers):
            own = lambda key, value, number=number: place(number, key, value)  # noqa: E731
            x = x + layer.self_attn(layer.input_layernorm(x), turn, mask, own)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.model.norm(x)
