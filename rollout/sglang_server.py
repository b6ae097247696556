"""An SGLang server of the worker's own: SGLang-JAX's scheduler behind endpoints of ours, which speak as vLLM's do."""

import os
from pathlib import Path

from rollout.vllm_server import VllmServer

SITE = Path(__file__).parent / "sglang_site"
"""What the server's interpreter runs: the endpoints and what they need of the scheduler."""
OTHER_DEVICES = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
"""Settings by which a worker's JAX would see more devices than the one that a server computes on."""


class SglangServer(VllmServer):
    """One server process, watched and ended as one of vLLM is. It takes whole weights alone."""

    def _command(self, folder: Path, port: int, rank: int) -> list[str]:
        options = {
            "model": folder, "port": port, "dtype": self._settings.dtype, "max-model-len": self._context,
            "max-num-seqs": self._slots,
        }  # fmt: skip
        named = [part for key, value in options.items() for part in (f"--{key}", str(value))]
        return [str(self._python), "-P", str(SITE / "headrace_sglang.py"), *named, *self._settings.arguments]

    def _environment(self) -> dict[str, str]:
        """The worker's, without its import path: names of our rooms would shadow SGLang's own dependencies."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k not in OTHER_DEVICES}
        return {"HF_HUB_OFFLINE": "1"} | kept | {"PYTHONPATH": str(SITE)}
