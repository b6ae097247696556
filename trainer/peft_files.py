"""Adapters as a folder that PEFT reads, stored beside the merged weights that they are part of.

Format: https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import save

from models.pure import flatten
from schemas import keys
from schemas.lora import LoRA
from schemas.manifest import WeightsRef
from storage.objects import ObjectStore

_MODEL = "base_model.model."


def peft_files(adapters: Mapping[str, Any], lora: LoRA, base: WeightsRef) -> dict[str, bytes]:
    """`adapter_config.json` and `adapter_model.safetensors` of adapters on the weights `base`."""
    flat = flatten(adapters)
    modules = sorted({name.rsplit(".", 2)[0] for name in flat})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.origin or base.prefix,
        "revision": None,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "use_rslora": lora.rank_stabilized,
        "target_modules": modules,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
    }
    tensors = {f"{_MODEL}{name}": np.ascontiguousarray(np.asarray(value)) for name, value in flat.items()}
    return {
        "adapter_config.json": (json.dumps(config, indent=2) + "\n").encode(),
        "adapter_model.safetensors": save(tensors, {"format": "pt", "base_sha256": base.sha256}),
    }


def save_adapter(
    store: ObjectStore, prefix: str, adapters: Mapping[str, Any], lora: LoRA | None, base: WeightsRef | None
) -> None:
    """Store the adapters below the weights at `prefix`; nothing where all weights were trained."""
    if lora is None or base is None:
        return
    for name, data in peft_files(adapters, lora, base).items():
        store.put(keys.adapter(prefix, name), data)
