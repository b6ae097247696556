"""A server of the worker's own: started on a weights folder, watched, and ended with the worker."""

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from rollout.vllm_client import VllmClient
from schemas.config import Servers
from schemas.errors import RequestError, RunStopped

SITE = Path(__file__).parent / "vllm_site"
"""What stands on the server's import path beside vLLM's own environment: the worker extension alone."""
GUARD = Path(__file__).parent / "vllm_guard.py"
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as the highest rank of adapters."""
POLL_SECONDS = 0.2
STOP_SECONDS = 20.0
CAUSE = re.compile(r"\b(\w*(?:Error|Exception|Exit): \S.*)")
VAGUE = ("initialization failed", "EngineCore encountered an issue", "Engine core proc")


def interpreter(settings: Servers) -> Path:
    """The Python that has what the servers run: the setting, the environment's (HEADRACE_VLLM_PYTHON), or what
    `make vllm-env` made (likewise for SGLang); else RequestError.
    """
    label, part = settings.label, settings.part
    variable, made = f"HEADRACE_{label.upper()}_PYTHON", Path(f".venv-{label.lower()}/bin/python")
    named = settings.python or os.environ.get(variable, "")
    found = Path(named) if named else next((p for p in (made, GUARD.parents[1] / made) if p.exists()), made)
    if not found.exists():
        raise RequestError(
            f"there is no Python at {found} to run {label} with: run `make {label.lower()}-env`, set {part}.python or "
            f"{variable} to the interpreter of an environment with {label}, or {part}.urls to servers that run"
        )
    return found.absolute()


class VllmServer:
    """One server process. `scratch` is the worker's folder of weights, which goes when the worker does."""

    def __init__(self, python: Path, settings: Servers, scratch: Path, context: int, slots: int) -> None:
        self._python, self._settings, self._scratch = python, settings, scratch
        self._context, self._slots = context, slots
        self._process: subprocess.Popen[bytes] | None = None
        self._log = scratch / "server.log"

    async def start(self, folder: Path, owner: str = "", rank: int = 0) -> VllmClient:
        """Serve the weights in `folder`, and adapters up to `rank`; 0: none.

        RunStopped where it can't, with the server's own cause, or takes too long.
        """
        port, deadline = _free_port(), time.monotonic() + self._settings.start_seconds
        self._process = await asyncio.to_thread(self._spawn, folder, port, rank)
        client = VllmClient(f"http://127.0.0.1:{port}", owner, self._settings.label)
        try:
            while not await client.healthy():
                if self._process.poll() is not None:
                    raise RunStopped(f"{self._settings.label} can't serve this model: {self.cause()}")
                if time.monotonic() > deadline:
                    limit = f"{self._settings.part}.start_seconds = {self._settings.start_seconds:g}"
                    raise RunStopped(f"{self._settings.label} did not answer within {limit}")
                await asyncio.sleep(POLL_SECONDS)
        except BaseException:
            await client.close()
            raise
        return client

    async def stop(self) -> None:
        """End the server and its children."""
        if self._process is None:
            return
        process, self._process = self._process, None
        await asyncio.to_thread(_end, process)

    def cause(self) -> str:
        """Why the server ended, from its log."""
        found = CAUSE.findall(self._log.read_text(errors="replace"))
        telling = [c for c in found if not any(v in c for v in VAGUE)] or found
        return telling[-1].strip()[:400] if telling else "it ended without a word"

    def _spawn(self, folder: Path, port: int, rank: int) -> subprocess.Popen[bytes]:
        guard = [sys.executable, "-I", str(GUARD), str(self._scratch)]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [*guard, *self._command(folder, port, rank)], env=self._environment(), stdin=subprocess.PIPE,
                stdout=log, stderr=log, start_new_session=True, cwd=self._scratch,
            )  # fmt: skip

    def _command(self, folder: Path, port: int, rank: int) -> list[str]:
        options = {
            "model": folder, "served-model-name": "headrace", "host": "127.0.0.1", "port": port,
            "dtype": self._settings.dtype, "max-model-len": self._context, "max-num-seqs": self._slots,
            "worker-extension-cls": "headrace_vllm.Extension", "generation-config": "vllm",
            "uvicorn-log-level": "warning",
        }  # fmt: skip
        switches = [
            "--enable-scale-out",
            "--skip-tokenizer-init",
            "--enable-prompt-tokens-details",
            "--disable-log-stats",
        ]
        if rank:
            switches.append("--enable-lora")
            options |= {"max-loras": 1, "max-cpu-loras": 1, "max-lora-rank": min(r for r in RANKS if r >= rank)}
        if self._on_cpu():
            switches.append("--enforce-eager")  # compiling for a CPU takes longer than it saves
            switches.append("--no-enable-chunked-prefill")  # a cut prompt with a seed ends the server on a CPU
        named = [part for key, value in options.items() for part in (f"--{key}", str(value))]
        command = [str(self._python), "-P", "-m", "vllm.entrypoints.openai.api_server"]
        return [*command, *named, *switches, *self._settings.arguments]

    def _environment(self) -> dict[str, str]:
        """The worker's, without its import path: names of our rooms would shadow vLLM's own dependencies."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        ours = {"PYTHONPATH": str(SITE), "VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
        quiet = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        on_cpu = self._cpu_environment() if self._on_cpu() else {}
        return on_cpu | quiet | kept | ours

    def _cpu_environment(self) -> dict[str, str]:
        """vLLM would bind itself to one core and hold another one back; the worker's own binding is enough."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(cores)}
        return threads | {"VLLM_CPU_KVCACHE_SPACE": "1", "LD_PRELOAD": str(self._openmp())}

    def _openmp(self) -> Path:
        return self._python.parents[1] / "lib" / "libiomp5.so"

    def _on_cpu(self) -> bool:
        """vLLM's CPU build brings Intel's OpenMP, which the others don't."""
        return self._openmp().exists()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _end(guard: subprocess.Popen[bytes]) -> None:
    assert guard.stdin is not None  # it was started with a pipe
    with contextlib.suppress(BrokenPipeError):
        guard.stdin.write(b"end")
        guard.stdin.close()
    try:
        guard.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()
