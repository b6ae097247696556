"""A Llama forward pass in plain float64 NumPy, one token at a time, written from the architecture's description."""

import math
from collections.abc import Mapping

import numpy as np


def logits(config: Mapping, tensors: Mapping[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """Logits [T, V] after each of `tokens`, from a config.json's object and tensors by Hugging Face name."""
    weight = {name: np.asanyarray(value, np.float64) for name, value in tensors.items()}
    past: dict[int, tuple[list, list]] = {n: ([], []) for n in range(config["num_hidden_layers"])}
    out = [_token(config, weight, token, position, past) for position, token in enumerate(tokens)]
    return np.stack(out)


def _token(config: Mapping, weight: Mapping, token: int, position: int, past: dict) -> np.ndarray:
    x = weight["model.embed_tokens.weight"][token]
    for n in range(config["num_hidden_layers"]):
        part = {k.split(f"layers.{n}.")[1]: v for k, v in weight.items() if f"layers.{n}." in k}
        x = x + _attention(config, part, _norm(config, x, part["input_layernorm.weight"]), position, past[n])
        y = _norm(config, x, part["post_attention_layernorm.weight"])
        gate = part["mlp.gate_proj.weight"] @ y
        x = x + part["mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * (part["mlp.up_proj.weight"] @ y))
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return weight[head] @ _norm(config, x, weight["model.norm.weight"])


def _attention(config: Mapping, part: Mapping, x: np.ndarray, position: int, past: tuple[list, list]) -> np.ndarray:
    heads, kv_heads, size = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    query = (part["self_attn.q_proj.weight"] @ x).reshape(heads, size)
    key = (part["self_attn.k_proj.weight"] @ x).reshape(kv_heads, size)
    past[0].append([_turned(config, one, position) for one in key])
    past[1].append((part["self_attn.v_proj.weight"] @ x).reshape(kv_heads, size))
    mixed = []
    for h in range(heads):
        group = h // (heads // kv_heads)
        turned = _turned(config, query[h], position)
        scores = np.array([turned @ keys[group] for keys in past[0]]) / math.sqrt(size)
        share = np.exp(scores - scores.max())
        share /= share.sum()
        mixed.append(sum(s * values[group] for s, values in zip(share, past[1], strict=True)))
    return part["self_attn.o_proj.weight"] @ np.concatenate(mixed)


def _turned(config: Mapping, x: np.ndarray, position: int) -> np.ndarray:
    """Each pair (i, i + half) as a complex number, turned by its own frequency."""
    half = config["head_dim"] // 2
    frequency = np.array([_frequency(config, config["rope_theta"] ** (-i / half)) for i in range(half)])
    turned = (x[:half] + 1j * x[half:]) * np.exp(1j * position * frequency)
    return np.concatenate([turned.real, turned.imag])


def _frequency(config: Mapping, plain: float) -> float:
    """Llama 3.1's rule, by wavelength as its authors wrote it."""
    rope = config.get("rope_scaling")
    if rope is None:
        return plain
    wavelength, old = 2 * math.pi / plain, rope["original_max_position_embeddings"]
    if wavelength < old / rope["high_freq_factor"]:
        return plain
    if wavelength > old / rope["low_freq_factor"]:
        return plain / rope["factor"]
    blend = (old / wavelength - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
    return (1 - blend) * plain / rope["factor"] + blend * plain


def _norm(config: Mapping, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return weight * x / np.sqrt(np.mean(x * x) + config["rms_norm_eps"])
