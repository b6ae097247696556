"""What a vLLM worker process must do for Headrace: say which model it holds, and take other weights whole.

Loaded inside vLLM by `--worker-extension-cls headrace_vllm.Extension`, so it imports vLLM alone. Its folder stands on
that process's path and therefore holds nothing else.
"""

import json
from pathlib import Path
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
from vllm.platforms import current_platform
from vllm.version import __version__

SHAPE = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "tie_word_embeddings",
)  # fmt: skip
"""What tells models apart in a `config.json`; the probe sees the rest."""


class Extension:
    """Mixed into vLLM's worker class; its methods are reached by `/collective_rpc`."""

    def headrace_describe(self) -> dict[str, Any]:
        """The shape of the model that is served, vLLM's version, and what is known of adapters."""
        config, lora = self.vllm_config.model_config.hf_config, self.vllm_config.lora_config
        return {
            "vllm": __version__,
            "model": {key: getattr(config, key, None) for key in SHAPE},
            "rank": lora.max_lora_rank if lora else 0,
            "adapters": sorted(self.list_loras()) if lora else [],
        }

    def headrace_load(self, folder: str) -> dict[str, Any]:
        """Take over the weights of a Hugging Face folder; what keeps it from doing so is in `refused`."""
        held, given = self.headrace_describe()["model"], json.loads((Path(folder) / "config.json").read_text())
        other = [key for key in SHAPE if None not in (held[key], given.get(key)) and held[key] != given[key]]
        if other:
            key = other[0]
            return {"refused": f"it serves a model of {key} {held[key]}, and this run's has {given[key]}"}
        self.reload_weights(weights_path=folder)
        if current_platform.is_cpu():
            self.headrace_pack_again()
        return {}

    def headrace_adapt(self, number: str, folder: str) -> dict[str, Any]:
        """Put the adapters of a folder in the place of those of a number; what is wrong with them is in `refused`."""
        try:
            self.add_lora(LoRARequest("headrace", int(number), folder, load_inplace=True))
        except ValueError as error:
            return {"refused": str(error)}
        return {}

    def headrace_pack_again(self) -> None:
        """Have layers whose weight was kept beside its packed copy compute with the weight that was just loaded.

        On a CPU vLLM computes from copies packed for oneDNN. A reload packs linear layers again, but an output head
        that shares the embedding's weight goes on with the copy that was packed first.
        """
        for layer in self.model_runner.get_model().modules():
            weight = getattr(layer, "weight", None)
            if "cpu_linear" in vars(layer) and weight is not None and weight.ndim == 2 and weight.numel():
                dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
