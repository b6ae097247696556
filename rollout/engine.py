"""What an episode asks of an engine: tokens in, tokens out, with log-probs and the policy version of every token.

A request carries the whole stream so far; an engine may keep keys and values of a session between turns, but must not
let that change what is sampled. Made by `rollout.episode`; kept by `rollout.jax_engine` and `rollout.scripted`.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

Finish = Literal["stop", "length", "context"]


@dataclass(frozen=True)
class Sampling:
    """How to sample one turn. Temperature 0 takes the likeliest token."""

    max_tokens: int
    temperature: float
    stop_ids: tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """One turn to sample."""

    session: str
    """The episode; its keys and values may be kept until `release`."""
    token_ids: tuple[int, ...]
    """The whole stream of the episode so far."""
    sampling: Sampling
    seed: int
    """Decides the samples, whatever else the engine is doing."""


@dataclass(frozen=True)
class Completion:
    """What was sampled, N tokens; a stop token is part of it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """[N] log-softmax of the raw logits at each token: no temperature in it, as the learner computes it."""
    versions: tuple[int, ...]
    """[N] the policy version that sampled each token."""
    finish: Finish
    """`stop`: a stop token; `length`: max_tokens; `context`: the stream is as long as the engine can hold."""
    queue_seconds: float
    generate_seconds: float


class Engine(Protocol):
    """Samples for many sessions at once on one event loop."""

    version: int
    """The policy in use; -1 before the first."""

    async def generate(self, request: Request) -> Completion:
        """Sample one turn. RequestError for a stream that does not fit; cancelling frees what it held."""
        ...

    def release(self, session: str) -> None:
        """The episode has ended: what was kept for it may go."""
        ...

    async def update_weights(self, params: Any, version: int) -> None:
        """Swap weights between decode steps; running requests go on. ValueError for a lower version."""
        ...

    def counters(self) -> dict[str, float]:
        """Work done so far: `prompt_tokens`, `prefilled_tokens`, `generated_tokens`, `busy_seconds`."""
        ...

    async def close(self) -> None:
        """Stop; waiting requests fail."""
        ...


def check_version(current: int, version: int) -> None:
    """Refuse to go back to an older policy."""
    if version < current:
        raise ValueError(f"policy {version} is older than policy {current}, which is in use: weights never go back")
