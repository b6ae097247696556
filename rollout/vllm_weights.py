"""Where vLLM servers find weights: one folder in Hugging Face layout a policy, whole before a server is told of it.
Adapters have one folder, in PEFT's layout.

A policy's parameters were read from the store and checked against their digest already; writing those again serves
every kind of store, and no server reads files that the learner may be removing.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from models.config import DecoderConfig
from models.pure import Params
from models.weights import to_files


class WeightsFolder:
    """A temporary folder in `parent` (default: the system's) for the weights of one model."""

    def __init__(self, parent: str, config: DecoderConfig) -> None:
        if parent:
            Path(parent).mkdir(parents=True, exist_ok=True)
        self.path = Path(tempfile.mkdtemp(prefix="headrace-vllm-", dir=parent or None))
        self._config, self._count = config, 0

    def write(self, params: Params, version: int) -> Path:
        """Write parameters as float32; blocking. Each call makes a new folder."""
        self._count += 1
        folder = self.path / f"policy-{version}-{self._count}"
        folder.mkdir()
        for name, data in to_files(self._config, params).items():
            (folder / name).write_bytes(data)
        return folder

    def write_adapter(self, files: Mapping[str, bytes]) -> Path:
        """Write adapters in the place of those before; blocking. A server that reads them anew finds the newest."""
        folder = self.path / "adapter"
        folder.mkdir(exist_ok=True)
        for name, data in files.items():
            (folder / f".{name}").write_bytes(data)
            os.replace(folder / f".{name}", folder / name)
        return folder

    def remove(self, folder: Path | None = None) -> None:
        """Remove one policy's folder, or everything."""
        shutil.rmtree(folder or self.path, ignore_errors=True)
