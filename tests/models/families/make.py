"""Make the tiny checkpoints of every family and the logits that transformers computes from them.

    python tests/models/families/make.py

Needs torch and transformers (5.24.0 made what is here), in an environment of their own. Weights are random and
uneven, windows shorter than the sequence, caps low and rotary bases small, so that each part of a model shows in its
logits: `tests/models/test_families.py` proves it by leaving them out one at a time.
"""

from pathlib import Path

import numpy as np
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

HERE = Path(__file__).parent
SIZES = {
    "vocab_size": 96, "hidden_size": 24, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "rms_norm_eps": 1e-3,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LENGTH, ROWS = 48, 2


def models() -> dict[str, tuple[PreTrainedModel, torch.dtype, str]]:
    """Per folder: a model, the dtype of its files, and how large they may be."""
    gemma = SIZES | {"head_dim": 8, "query_pre_attn_scalar": 20, "sliding_window": 7}
    gemma3 = gemma | {
        "num_hidden_layers": 7, "final_logit_softcapping": 4.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 300.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
        },
    }  # fmt: skip
    gemma2 = gemma | {"num_hidden_layers": 4, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}
    plain = SIZES | {"num_hidden_layers": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
    windowed = {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
    linear = {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0}}
    full, half, whole = torch.float32, torch.bfloat16, "1GB"
    return {
        "smollm2": (LlamaForCausalLM(LlamaConfig(**plain, tie_word_embeddings=True)), full, whole),
        "llama3": (LlamaForCausalLM(LlamaConfig(**plain | {"rope_parameters": LLAMA3}, head_dim=8)), full, whole),
        "llama3_sharded": (LlamaForCausalLM(LlamaConfig(**plain | {"rope_parameters": LLAMA3})), half, "10KB"),
        "llama_linear": (LlamaForCausalLM(LlamaConfig(**plain | linear)), full, whole),
        "qwen2": (Qwen2ForCausalLM(Qwen2Config(**plain, tie_word_embeddings=True)), full, whole),
        "qwen2_windowed": (Qwen2ForCausalLM(Qwen2Config(**plain | windowed)), half, "10KB"),
        "qwen3": (Qwen3ForCausalLM(Qwen3Config(**plain, head_dim=8, tie_word_embeddings=True)), full, whole),
        "qwen3_untied": (Qwen3ForCausalLM(Qwen3Config(**plain, head_dim=8)), half, whole),
        "gemma2": (Gemma2ForCausalLM(Gemma2Config(**gemma2)), full, whole),
        "gemma3": (Gemma3ForCausalLM(Gemma3TextConfig(**gemma3)), full, whole),
        "gemma3_sharded": (Gemma3ForCausalLM(Gemma3TextConfig(**gemma3)), half, "20KB"),
    }


def unsettle(model: PreTrainedModel, draw: torch.Generator) -> None:
    """Give every parameter, norms and biases too, values that show."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=draw))


def main() -> None:
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, SIZES["vocab_size"], (ROWS, LENGTH), generator=draw)
    for name, (model, dtype, size) in models().items():
        unsettle(model, draw)
        model.to(dtype).save_pretrained(HERE / name, max_shard_size=size)
        for extra in (HERE / name).glob("generation_config.json"):
            extra.unlink()
        # Read anew: a model that was cast to bfloat16 and back has kept rounded rotary frequencies.
        read = type(model).from_pretrained(HERE / name, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            logits = read(tokens, use_cache=False).logits
        np.savez_compressed(HERE / name / "reference.npz", tokens=tokens.numpy(), logits=logits.numpy())
        print(name, f"logits between {logits.min():.1f} and {logits.max():.1f}")


if __name__ == "__main__":
    main()
