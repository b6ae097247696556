"""What an episode asks of an engine: tokens in, tokens out, with log-probs and the policy version of every token.

A request carries the whole stream so far; an engine may keep keys and values of a session between turns, but must not
let that change what is sampled. Asked by `rollout.collect`; kept by `rollout.jax_engine`, `rollout.vllm_engine` and
`rollout.scripted`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from schemas.errors import RequestError, RunStopped

Finish = Literal["stop", "length", "context"]
Decode = Callable[[Sequence[int]], str]
"""The text of token ids: what an engine is given so that it can look for stop strings."""
SCORED = 64
"""Tokens that `Engine.score` takes at most."""


@dataclass(frozen=True)
class Sampling:
    """How to sample one turn."""

    max_tokens: int
    """At least 1."""
    temperature: float
    """0 takes the likeliest token."""
    stop_ids: tuple[int, ...]
    top_p: float = 1.0
    """In (0, 1]: sample from the smallest set of likeliest tokens whose probability adds up to this. 1: from all."""
    top_k: int = 0
    """Sample from this many of the likeliest tokens, before `top_p` is applied. 0: from all."""
    stop: tuple[str, ...] = ()
    """The turn ends with the token that completes one of these in the turn's text; that token is part of the turn."""


@dataclass(frozen=True)
class Request:
    """One turn to sample."""

    session: str
    """The episode; its keys and values may be kept until `release`."""
    token_ids: tuple[int, ...]
    """The whole stream of the episode so far."""
    sampling: Sampling
    seed: int
    """In [0, 2**32). Decides the samples, whatever else the engine is doing."""


@dataclass(frozen=True)
class Completion:
    """What was sampled, N tokens; a stop token is part of it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """[N] log-softmax of the raw logits at each token, as the learner computes it: no temperature, no truncation."""
    versions: tuple[int, ...]
    """[N] the policy version that sampled each token."""
    finish: Finish
    """`stop`: a stop token or string; `length`: max_tokens; `context`: the stream is as long as the engine can hold."""
    queue_seconds: float
    generate_seconds: float


class EngineUnfit(RunStopped):
    """The engine can't go on, or can't be trusted: no request to it makes sense any more, and the process stops."""


class Engine(Protocol):
    """Samples for many sessions at once on one event loop."""

    @property
    def version(self) -> int:
        """The policy in use; -1 before the first."""
        ...

    async def generate(self, request: Request) -> Completion:
        """Sample one turn, once there is a policy.

        Cancelling takes the request out of the queue, or its place away before the next dispatch; a deadline is
        `asyncio.timeout` around the call.
        RequestError for a request that can't be served, RunStopped for one that failed or where the engine is closed,
        EngineUnfit where others would fare no better.
        """
        ...

    def release(self, session: str) -> None:
        """The episode has ended: what was kept for it may go."""
        ...

    async def update_weights(self, params: Any, version: int) -> None:
        """Swap weights between decode steps; running requests go on. ValueError for a lower version."""
        ...

    async def score(self, token_ids: tuple[int, ...]) -> dict[str, tuple[float, ...]]:
        """By each holder of weights (for messages), the log-probs of token_ids[1:] as `Completion.logprobs` has them.

        At most `SCORED` tokens. Empty for an engine that has no weights, so that there is nothing to prove.
        """
        ...

    def counters(self) -> dict[str, float]:
        """Work done so far: `prompt_tokens`, `prefilled_tokens`, `generated_tokens`, `dispatches`, `busy_seconds`."""
        ...

    async def close(self) -> None:
        """Stop; waiting requests fail."""
        ...


def no_work() -> dict[str, float]:
    """Counters of an engine that has done nothing yet."""
    return dict.fromkeys(("prompt_tokens", "prefilled_tokens", "generated_tokens", "dispatches", "busy_seconds"), 0.0)


def check_version(current: int, version: int) -> None:
    """ValueError for going back to an older policy."""
    if version < current:
        raise ValueError(f"policy {version} is older than policy {current}, which is in use: weights never go back")


def check_scored(token_ids: tuple[int, ...]) -> None:
    """RequestError for streams that `Engine.score` does not take."""
    if not 1 < len(token_ids) <= SCORED:
        raise RequestError(f"a stream of {len(token_ids)} tokens can't be scored: give 2 to {SCORED}")


def check_ids(token_ids: Sequence[int], vocabulary: int) -> None:
    """RequestError for ids that the model does not have: JAX would clip them in silence, vLLM would die of them."""
    wrong = [t for t in token_ids if not 0 <= t < vocabulary]
    if wrong:
        raise RequestError(
            f"token {wrong[0]} is not in the model's vocabulary of {vocabulary}: is it the right tokenizer?"
        )


def check_request(request: Request, context: int, decode: Decode | None) -> None:
    """RequestError for what no engine with room for `context` tokens and this decoder can serve."""
    tokens, sampling = len(request.token_ids), request.sampling
    if not 0 < tokens < context:
        raise RequestError(
            f"a stream of {tokens} tokens can't be continued in a context of {context}: "
            "raise rollout.max_length or change the prompt"
        )
    if sampling.max_tokens < 1:
        raise RequestError(
            f"a request for {sampling.max_tokens} tokens asks for nothing: max_tokens must be at least 1"
        )
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise RequestError(f"temperature {sampling.temperature} is not a number from 0 up")
    if not 0 < sampling.top_p <= 1:
        raise RequestError(f"top_p {sampling.top_p} is not a number above 0 and at most 1")
    if sampling.top_k < 0:
        raise RequestError(f"top_k {sampling.top_k} is negative: 0 leaves all tokens in")
    if not all(sampling.stop):
        raise RequestError("an empty stop string would end every turn at once: leave it out")
    if sampling.stop and decode is None:
        raise RequestError("stop strings need text: give the engine the tokenizer's `decode`, or use stop_ids")
    if not 0 <= request.seed < 2**32:
        raise RequestError(f"seed {request.seed} is not in [0, 2**32): derive it with schemas.seeds.request")


def stop_length(tokens: Sequence[int], stop: Sequence[str], decode: Decode | None, known: int = 0) -> int | None:
    """How many of a turn's `tokens` it takes until their text holds one of the `stop` strings; None if it never does.

    The first `known` tokens are known to hold none. Looked for in the text of the whole turn, so a string may begin
    and end inside tokens.
    """
    if not stop or decode is None or not _holds(decode(tokens), stop):
        return None
    return next((n for n in range(known + 1, len(tokens)) if _holds(decode(tokens[:n]), stop)), len(tokens))


def _holds(text: str, stop: Sequence[str]) -> bool:
    return any(s in text for s in stop)
