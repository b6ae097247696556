"""What shape a decoder has, in Hugging Face's names, and how it is read from and written to `config.json`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from models.families import Switches, family_of, windows
from models.rope_settings import LinearScaling, RopeScaling, read_rope
from schemas.config import Architecture
from schemas.errors import RequestError


@dataclass(frozen=True)
class DecoderConfig:
    """The shape of a decoder. Made by `from_hf` or, for Llama, by hand; hashable, so jitted functions key on it."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    rope_scaling: RopeScaling | LinearScaling | None = None
    initializer_range: float = 0.02
    """Standard deviation of fresh weights."""
    switches: Switches = field(default_factory=Switches)
    windows: tuple[int | None, ...] = ()
    """Per layer, how many tokens a query looks back on, itself included; None for all. Empty: all layers see all."""
    local_rope_theta: float | None = None
    """The rotary base of windowed layers, unscaled; None: as in the other layers."""
    query_scalar: float | None = None
    """Attention scores are divided by its square root; None: by that of `head_dim`."""
    attention_softcap: float | None = None
    """Attention scores are kept within ± this by a tanh."""
    final_softcap: float | None = None
    """Logits are kept within ± this by a tanh."""
    source: str = field(default="", compare=False, repr=False)
    """The text of the `config.json` that this was read from; exports give it back."""

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise RequestError(
                f"num_attention_heads ({self.num_attention_heads}) is not a multiple of num_key_value_heads"
                f" ({self.num_key_value_heads}): choose head counts that divide."
            )
        if self.head_dim % 2:
            raise RequestError(f"head_dim is {self.head_dim}, but rotary embeddings need an even one: choose another.")

    @property
    def residual_scale(self) -> float:
        """Standard deviation of fresh projections back into the residual stream (GPT-2's rule)."""
        return self.initializer_range / (2 * self.num_hidden_layers) ** 0.5

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "DecoderConfig":
        """The shape that a `config.json` describes. RequestError where we could not compute what it asks for."""
        family, source = family_of(config), json.dumps(config, indent=2) + "\n"
        config = {**family.defaults, **config}
        hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
        layers, rope, eos = _size(config, "num_hidden_layers"), read_rope(config), config.get("eos_token_id")
        return cls(
            vocab_size=_size(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_size(config, "intermediate_size"),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            max_position_embeddings=_size(config, "max_position_embeddings"),
            rope_theta=rope.theta,
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            bos_token_id=config.get("bos_token_id"),
            eos_token_id=tuple(eos) if isinstance(eos, list) else eos,
            rope_scaling=rope.scaling,
            initializer_range=float(config.get("initializer_range", 0.02)),
            switches=family.switches,
            windows=windows(config, layers),
            local_rope_theta=rope.local_theta,
            query_scalar=config.get("query_pre_attn_scalar"),
            attention_softcap=config.get("attn_logit_softcapping"),
            final_softcap=config.get("final_logit_softcapping"),
            source=source,
        )

    @classmethod
    def from_architecture(cls, shape: Architecture, vocab_size: int, eos_token_id: int | None) -> "DecoderConfig":
        """The decoder that a run's `[model.architecture]` asks for."""
        hidden = shape.hidden_size
        sizes = shape.model_dump() | {"initializer_range": shape.initializer_range or hidden**-0.5}
        head_dim = hidden // shape.num_attention_heads
        return cls(vocab_size=vocab_size, head_dim=head_dim, eos_token_id=eos_token_id, **sizes)

    def to_hf(self) -> dict[str, Any]:
        """The `config.json` that this was read from, or else one that transformers and vLLM read as Llama's."""
        if self.source:
            return json.loads(self.source)
        eos = list(self.eos_token_id) if isinstance(self.eos_token_id, tuple) else self.eos_token_id
        scaling = self.rope_scaling
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.max_position_embeddings,
            "rope_theta": self.rope_theta,
            "rope_scaling": None if scaling is None else _written(scaling),
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_word_embeddings,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": eos,
            "initializer_range": self.initializer_range,
            "use_cache": True,
        }


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        found = "is missing" if key not in config else f"is {value!r}"
        raise RequestError(f"config.json: {key} {found}; it must be a whole number of at least 1.")
    return value


def _written(scaling: RopeScaling | LinearScaling) -> dict[str, Any]:
    return {"rope_type": "llama3" if isinstance(scaling, RopeScaling) else "linear", **vars(scaling)}
