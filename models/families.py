"""The families of models that the one decoder serves: what sets each apart, as a row of switches.

Tensors of all families carry the names of Hugging Face files, which are the paths of the decoder's parameters, so no
family needs a name map. What a `config.json` may leave out is here too, with the value that transformers then takes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from schemas.errors import RequestError

Activation = Literal["silu", "gelu_pytorch_tanh"]


@dataclass(frozen=True)
class Switches:
    """Where a family departs from Llama (Touvron et al., 2023, arXiv:2302.13971)."""

    qkv_bias: bool = False
    """Queries, keys and values have a bias (Qwen 2)."""
    qk_norm: bool = False
    """Each head's query and key are normalised before they are turned (Qwen 3, Gemma 3)."""
    unit_offset: bool = False
    """Norms multiply by 1 + weight rather than by weight (Gemma)."""
    sandwich_norms: bool = False
    """Attention and MLP are normalised after as well as before (Gemma 2)."""
    scaled_embedding: bool = False
    """Embeddings are multiplied by sqrt(hidden_size) (Gemma)."""
    activation: Activation = "silu"


@dataclass(frozen=True)
class Family:
    """One architecture of Hugging Face's: its switches, and how its `config.json` is read."""

    architecture: str
    switches: Switches = field(default_factory=Switches)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys that a `config.json` may leave out."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Keys that may only have this value, since we compute nothing else."""


_GEMMA = {
    "tie_word_embeddings": True, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
_GEMMA_FIXED = {
    "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False, "use_bidirectional_attention": False,
}  # fmt: skip
_SILU = {"hidden_act": "silu"}
_GEMMA_2 = Switches(
    unit_offset=True, sandwich_norms=True, scaled_embedding=True, activation="gelu_pytorch_tanh"
)  # fmt: skip
_GEMMA_3 = Switches(
    qk_norm=True, unit_offset=True, sandwich_norms=True, scaled_embedding=True, activation="gelu_pytorch_tanh"
)  # fmt: skip

FAMILIES = {
    family.architecture: family
    for family in (
        Family("LlamaForCausalLM", fixed=_SILU | {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1}),
        Family("Qwen2ForCausalLM", Switches(qkv_bias=True), fixed=_SILU),
        Family("Qwen3ForCausalLM", Switches(qk_norm=True), {"head_dim": 128}, _SILU | {"attention_bias": False}),
        Family(
            "Gemma2ForCausalLM", _GEMMA_2,
            _GEMMA | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window_pattern": 2},
            _GEMMA_FIXED,
        ),
        Family(
            "Gemma3ForCausalLM", _GEMMA_3,
            _GEMMA | {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6},
            # transformers has the setting but leaves it out of Gemma 3's attention.
            _GEMMA_FIXED | {"attn_logit_softcapping": None},
        ),
    )
}  # fmt: skip


def family_of(config: Mapping[str, Any]) -> Family:
    """The family that a `config.json` names. RequestError where it is none of ours or sets what none computes."""
    names = tuple(config.get("architectures") or ()) or ("(none)",)
    family = next((FAMILIES[name] for name in names if name in FAMILIES), None)
    if family is None:
        raise RequestError(
            f"config.json asks for the architecture {names[0]}, which is not supported: use one of"
            f" {', '.join(FAMILIES)}."
        )
    for key, only in {**family.fixed, "quantization_config": None}.items():
        if config.get(key, only) not in (only, None):
            raise RequestError(f"config.json sets {key} to {config[key]!r}; only {only!r} is supported.")
    return family


def windows(config: Mapping[str, Any], layers: int) -> tuple[int | None, ...]:
    """Per layer, how many tokens a query looks back on (itself included), None for all; () if all layers look at all.

    `config` has the family's defaults filled in.
    """
    kinds = config.get("layer_types") or _layer_types(config, layers)
    unknown = next((kind for kind in kinds if kind not in ("full_attention", "sliding_attention")), None)
    if unknown is not None or len(kinds) != layers:
        found = f"the kind {unknown!r}" if unknown is not None else f"{len(kinds)} kinds for {layers} layers"
        raise RequestError(
            f"config.json: layer_types has {found}; give each layer full_attention or sliding_attention."
        )
    if "sliding_attention" not in kinds:
        return ()
    size = config.get("sliding_window")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise RequestError(f"config.json: sliding_window is {size!r}; it must be a whole number of at least 1.")
    return tuple(size if kind == "sliding_attention" else None for kind in kinds)


def _layer_types(config: Mapping[str, Any], layers: int) -> list[str]:
    """What transformers derives where `layer_types` is left out."""
    every, sliding = config.get("sliding_window_pattern"), "sliding_attention"
    if every:
        return [sliding if (layer + 1) % every else "full_attention" for layer in range(layers)]
    first = config.get("max_window_layers", 28) if config.get("use_sliding_window") else layers
    return [sliding if layer >= first else "full_attention" for layer in range(layers)]
