"""The decoder: a Llama-style transformer (Touvron et al., 2023, arXiv:2302.13971) as a Flax NNX module.

`models.families` says by which switches the other families depart from it.

One body serves training (a whole padded batch), pre-fill (chunks) and decoding (one token): they differ only in where
each layer's keys and values come from. Attributes are named as in Hugging Face files, so weights map by path.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from models.attention import Attention, Part
from models.cache import KVCache, put_tokens
from models.config import DecoderConfig
from models.layers import Embedding, Linear, RMSNorm, softcap
from models.rope import rotation
from models.sight import Sight, beside_cache, over_row

PlaceLayer = Callable[[int, jax.Array, jax.Array], Sequence[Part]]
FindSight = Callable[[int | None], tuple[Sight, ...]]
"""How many tokens a layer's queries look back on (None: all) → what they see."""


class MLP(nnx.Module):
    """SwiGLU or its variant with GELU (Shazeer, 2020, arXiv:2002.05202)."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = Linear(hidden, inner, scale=config.initializer_range, rngs=rngs)
        self.up_proj = Linear(hidden, inner, scale=config.initializer_range, rngs=rngs)
        self.down_proj = Linear(inner, hidden, scale=config.residual_scale, rngs=rngs)
        self.activation = config.switches.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        act = jax.nn.silu if self.activation == "silu" else jax.nn.gelu  # the tanh form is gelu's default in JAX
        return self.down_proj(act(self.gate_proj(x)) * self.up_proj(x))


class Layer(nnx.Module):
    """Attention and MLP, each on a normalised copy and added back, with sandwich norms normalised once more before."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        self.self_attn = Attention(config, rngs=rngs)
        self.mlp = MLP(config, rngs=rngs)
        self.input_layernorm, self.post_attention_layernorm = _norm(config), _norm(config)
        self.sandwich = config.switches.sandwich_norms
        if self.sandwich:
            self.pre_feedforward_layernorm, self.post_feedforward_layernorm = _norm(config), _norm(config)

    def __call__(self, x: jax.Array, attend: Callable[[Attention, jax.Array], jax.Array]) -> jax.Array:
        """x [B, T, hidden] → [B, T, hidden]; `attend` gives this layer's attention what it looks at."""
        mixed = attend(self.self_attn, self.input_layernorm(x))
        if not self.sandwich:
            x = x + mixed
            return x + self.mlp(self.post_attention_layernorm(x))
        x = x + self.post_attention_layernorm(mixed)
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


def _norm(config: DecoderConfig) -> RMSNorm:
    return RMSNorm(config.hidden_size, eps=config.rms_norm_eps, unit_offset=config.switches.unit_offset)


class Body(nnx.Module):
    """Embeddings, layers and the last norm: what Hugging Face files call `model`."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, scale=config.initializer_range, rngs=rngs)
        self.layers = nnx.List([Layer(config, rngs=rngs) for _ in range(config.num_hidden_layers)])
        self.norm = _norm(config)
        self.scale = config.hidden_size**0.5 if config.switches.scaled_embedding else None

    def embed(self, tokens: jax.Array) -> jax.Array:
        """What the first layer sees of `tokens` [B, T]: [B, T, hidden]."""
        x = self.embed_tokens(tokens)
        return x if self.scale is None else x * jnp.asarray(self.scale, x.dtype)


class Decoder(nnx.Module):
    """The language model. Parameters are float32 when made; it computes in the dtype of its parameters."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.model = Body(config, rngs=rngs)
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size, scale=config.initializer_range, rngs=rngs)

    def __call__(self, tokens: jax.Array, positions: jax.Array, segments: jax.Array) -> jax.Array:
        """Logits [B, T, V] of the token after each of `tokens` [B, T]: see `hidden`."""
        return self.head(self.hidden(tokens, positions, segments))

    def hidden(self, tokens: jax.Array, positions: jax.Array, segments: jax.Array, *, remat: bool = False) -> jax.Array:
        """Hidden states [B, T, hidden] after the last norm: what `head` turns into logits.

        Tokens see those before them whose entry in `segments` [B, T] is theirs: streams that share a row, or the row's
        tokens (True) and its padding (False). A segment's tokens are next to each other. With `remat` a backward pass
        makes what is inside a layer again, so that only what goes from layer to layer is kept for it.
        """
        own = lambda _, key, value: [(key, value)]  # noqa: E731
        return self._run(tokens, positions, lambda window: over_row(segments, window), own, remat=remat)

    def head(self, hidden: jax.Array) -> jax.Array:
        """Float32 logits [..., V] of hidden states [..., hidden]."""
        tied = self.config.tie_word_embeddings
        logits = (self.model.embed_tokens if tied else self.lm_head).attend(hidden)
        return softcap(logits, self.config.final_softcap)

    def extend(
        self, tokens: jax.Array, cache: KVCache, lengths: jax.Array, counts: jax.Array
    ) -> tuple[jax.Array, KVCache]:
        """Logits [B, C, V] of tokens appended to cached rows, and the longer cache.

        Row b holds `lengths[b]` tokens; the first `counts[b]` of its C new `tokens` [B, C] are real and are written at
        `lengths[b]` and after; the rest leave no trace in the cache, and their logits mean nothing. The caller sees to
        it that `lengths + counts` stays within the cache; what lies beyond it is not written.
        """
        hidden, new = self.read(tokens, cache, lengths)
        return self.head(hidden), put_tokens(cache, jnp.arange(len(tokens)), lengths, counts, new)

    def read(self, tokens: jax.Array, past: KVCache, lengths: jax.Array) -> tuple[jax.Array, KVCache]:
        """Hidden states [B, C, hidden] of `tokens` [B, C] after the `lengths` [B] tokens of `past`, and the keys and
        values of the new tokens, as a cache of length C. Padding is to the right."""
        steps = jnp.arange(tokens.shape[1])
        sight = lambda window: beside_cache(lengths, past.length, steps, len(steps), window)  # noqa: E731
        keys, values = list(past.keys), list(past.values)

        def place(layer: int, key: jax.Array, value: jax.Array) -> Sequence[Part]:
            keys[layer], values[layer] = key, value
            return [(past.keys[layer], past.values[layer]), (key, value)]

        return self._run(tokens, lengths[:, None] + steps, sight, place), KVCache(tuple(keys), tuple(values))

    def step(
        self, tokens: jax.Array, past: KVCache, lengths: jax.Array, recent: KVCache, number: jax.Array
    ) -> tuple[jax.Array, KVCache]:
        """Logits [B, V] of one token per row, `tokens` [B], after `lengths` [B] tokens of `past` and the first `number`
        (one for all rows) of `recent`, and `recent` with this token. Decoding writes to `recent` alone, which is short:
        to write to a cache costs a pass over all of it.
        """
        sight = lambda window: beside_cache(lengths, past.length, number[None], recent.length, window)  # noqa: E731
        keys, values = list(recent.keys), list(recent.values)

        def place(layer: int, key: jax.Array, value: jax.Array) -> Sequence[Part]:
            keys[layer] = jax.lax.dynamic_update_slice_in_dim(keys[layer], key, number, axis=3)
            values[layer] = jax.lax.dynamic_update_slice_in_dim(values[layer], value, number, axis=2)
            return [(past.keys[layer], past.values[layer]), (keys[layer], values[layer])]

        hidden = self._run(tokens[:, None], (lengths + number)[:, None], sight, place)
        return self.head(hidden[:, 0]), KVCache(tuple(keys), tuple(values))

    def _run(
        self, tokens: jax.Array, positions: jax.Array, sight: FindSight, place: PlaceLayer, *, remat: bool = False
    ) -> jax.Array:
        kinds = {window: self._kind(positions, sight, window) for window in {None, *self.config.windows}}
        x = self.model.embed(tokens)
        for number, layer in enumerate(self.model.layers):
            turn, sights = kinds[self.config.windows[number] if self.config.windows else None]
            own = lambda key, value, number=number: place(number, key, value)  # noqa: E731
            look = lambda attention, y, turn=turn, sights=sights, own=own: attention(y, turn, sights, own)  # noqa: E731
            through = lambda x, layer=layer, look=look: layer(x, look)  # noqa: E731
            x = jax.checkpoint(through)(x) if remat else through(x)
        return self.model.norm(x)

    def _kind(
        self, positions: jax.Array, sight: FindSight, window: int | None
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[Sight, ...]]:
        """What layers of one kind share: the rotation of `positions`, and which keys queries may see."""
        return rotation(self.config, positions, local=window is not None), sight(window)
