"""The decoder as pure functions of its parameters: what jitted steps call.

`Params` is a plain nested dict of arrays whose path, joined by dots, is the tensor's name in Hugging Face files. The
NNX module is taken apart once per configuration; a traced function puts it together again at no run-time cost.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jax
from flax import nnx

from models.cache import KVCache
from models.config import DecoderConfig
from models.decoder import Decoder

Params = dict[str, Any]
"""Nested dict with string keys; leaves are arrays: params["model"]["layers"]["0"]["self_attn"]["q_proj"]["weight"]."""


def flatten(params: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Tensor name → array, in the sorted order of names within each level."""
    out: dict[str, Any] = {}
    for key in sorted(params):
        value, name = params[key], f"{prefix}{key}"
        out |= flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return out


def nest(flat: Mapping[str, Any]) -> Params:
    """The nested dict of a flat one: `flatten` undone."""
    out: Params = {}
    for name, value in flat.items():
        *path, leaf = name.split(".")
        here = out
        for key in path:
            here = here.setdefault(key, {})
        here[leaf] = value
    return out


def shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Tensor name → shape of every parameter, sorted by name."""
    _, paths = _taken_apart(config)
    return dict(sorted((name, shape) for name, (_, shape) in paths.items()))


def init_params(config: DecoderConfig, seed: int) -> Params:
    """Fresh float32 parameters: normal, projections back into the residual stream scaled by 1 / sqrt(2 layers)."""
    _, state = nnx.split(Decoder(config, rngs=nnx.Rngs(params=seed)))
    return nest({_name(path): leaf.get_value() for path, leaf in nnx.to_flat_state(state)})


def module(config: DecoderConfig, params: Params) -> Decoder:
    """The NNX module that holds these parameters."""
    graphdef, paths = _taken_apart(config)
    flat = flatten(params)
    leaves = [(path, nnx.Param(flat[name])) for name, (path, _) in paths.items()]
    return nnx.merge(graphdef, nnx.from_flat_state(leaves))


def apply(
    config: DecoderConfig, params: Params, tokens: jax.Array, positions: jax.Array, segments: jax.Array
) -> jax.Array:
    """Logits [B, T, V] for `tokens`, `positions` and `segments`, all [B, T]: see `Decoder.hidden`."""
    return module(config, params)(tokens, positions, segments)


def extend(
    config: DecoderConfig,
    params: Params,
    tokens: jax.Array,
    cache: KVCache,
    lengths: jax.Array,
    counts: jax.Array,
) -> tuple[jax.Array, KVCache]:
    """Logits [B, C, V] of new tokens [B, C] after cached ones, and the longer cache: see `Decoder.extend`."""
    return module(config, params).extend(tokens, cache, lengths, counts)


@lru_cache(maxsize=16)
def _taken_apart(config: DecoderConfig) -> tuple[Any, dict[str, tuple[tuple, tuple[int, ...]]]]:
    abstract = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(params=0)))
    graphdef, state = nnx.split(abstract)
    flat = nnx.to_flat_state(state)
    return graphdef, {_name(path): (tuple(path), tuple(leaf.get_value().shape)) for path, leaf in flat}


def _name(path: tuple) -> str:
    return ".".join(map(str, path))
