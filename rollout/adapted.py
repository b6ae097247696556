"""A policy as adapters on weights that stay: what an engine may be given instead of whole weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
"""PEFT's files."""


@dataclass(frozen=True)
class Adapted:
    """The weights of one policy."""

    files: Mapping[str, bytes]
    """The adapters as PEFT's files, by name."""
    base: Any | None
    """The parameters that they are added to. None: those that the engine was given before."""

    @property
    def rank(self) -> int:
        return int(json.loads(self.files[CONFIG])["r"])
