"""Servers that sample for rollout workers: where they are, or how each worker starts one of its own."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import Count, PositiveFloat, Section

VLLM_RANK = 512
"""The highest rank of adapters that vLLM 0.32 takes."""


class Servers(Section):
    """What servers of every kind have in common."""

    label: ClassVar[str] = ""
    """What they are called in messages."""
    urls: tuple[Annotated[str, Field(pattern=r"^https?://(\[[0-9a-fA-F:]+\]|[\w.-]+)(:\d+)?(/\S*)?$")], ...] = ()
    """Servers that run already, between which requests are balanced. Whoever plays decides over their weights, so they
    need `rollout.workers = 1`, `evaluation.workers = 1` and `evaluation.every = 0`. Empty: each worker and evaluation
    starts one of its own."""
    python: str = ""
    """The interpreter of an environment with what they run. Default: HEADRACE_VLLM_PYTHON or HEADRACE_SGLANG_PYTHON,
    else what `make vllm-env` or `make sglang-env` made."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What a started server computes in; raise `rollout.probe_tolerance` for bfloat16."""
    arguments: tuple[str, ...] = ()
    """Further arguments of a started server."""
    folder: str = ""
    """Where new weights are put for the servers, which must see it under the same path. Default: a temporary folder."""
    start_seconds: PositiveFloat = 600.0
    """How long a server may take to load a model or new weights, or to come back."""
    request_seconds: PositiveFloat = 600.0
    """How long one turn may take, waiting for a busy server or its restart included."""
    restarts: Count = 3
    """Times a dead server is started again by one worker; by URL, times one that was away, or was started again, is
    given the newest weights anew."""

    @property
    def part(self) -> str:
        """Where they are configured, for messages."""
        return f"rollout.{self.label.lower()}"


class VllmServers(Servers):
    """The vLLM servers of each rollout worker (`rollout.engine = "vllm"`); see docs/engines.md."""

    label: ClassVar[str] = "vLLM"
    adapters: bool = False
    """With `[lora]`: new policies reach the servers as adapters on weights that stay there, instead of whole. Started
    servers get vLLM's own LoRA for it; how to start others stands in docs/engines.md. Evaluations use whole weights."""


class SglangServers(Servers):
    """The SGLang servers of each rollout worker (`rollout.engine = "sglang"`); see docs/engines.md."""

    label: ClassVar[str] = "SGLang"
