"""An engine whose answers come from a function: for tests, load and policies written by hand."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from rollout.engine import Completion, Decode, Finish, Request, check_request, check_version, no_work, stop_length
from schemas.errors import RunStopped

Script = Callable[[tuple[int, ...], int, int], Sequence[int] | tuple[Sequence[int], Sequence[float]]]
"""(stream, seed, policy version) → the turn's tokens, or the tokens and their log-probs."""


class ScriptedEngine:
    """Answers each request with `script`, after `seconds` that block nobody."""

    def __init__(
        self,
        script: Script,
        *,
        version: int = -1,
        max_length: int = 1 << 20,
        seconds: float = 0.0,
        decode: Decode | None = None,
    ) -> None:
        self._script, self._max_length, self._seconds, self._decode = script, max_length, seconds, decode
        self.version = version
        self._counters = no_work()
        self._closed = False
        self._ready = asyncio.Event()
        if version >= 0:
            self._ready.set()

    async def generate(self, request: Request) -> Completion:
        check_request(request, self._max_length, self._decode)
        started = time.monotonic()
        await self._ready.wait()
        version, queued = self.version, time.monotonic()
        await asyncio.sleep(self._seconds)
        if self._closed:
            raise RunStopped("the engine is closed")
        tokens, logprobs = _parts(self._script(request.token_ids, request.seed, version))
        tokens, logprobs, finish = _cut(tokens, logprobs, request, self._max_length, self._decode)
        self._counters["prompt_tokens"] += len(request.token_ids)
        self._counters["generated_tokens"] += len(tokens)
        self._counters["dispatches"] += 1
        return Completion(
            token_ids=tuple(tokens),
            logprobs=tuple(logprobs),
            versions=(version,) * len(tokens),
            finish=finish,
            queue_seconds=queued - started,
            generate_seconds=time.monotonic() - queued,
        )

    def release(self, session: str) -> None:
        """Nothing is kept."""

    async def update_weights(self, params: Any, version: int) -> None:
        check_version(self.version, version)
        self.version = version
        self._ready.set()

    async def score(self, token_ids: tuple[int, ...]) -> dict[str, tuple[float, ...]]:
        """A script has no weights: nothing to prove."""
        return {}

    def counters(self) -> dict[str, float]:
        return dict(self._counters)

    async def close(self) -> None:
        self._closed = True
        self._ready.set()


def _parts(answer: Any) -> tuple[list[int], list[float]]:
    """Tokens and log-probs of a script's answer; 0 where it gives none."""
    if isinstance(answer, tuple) and len(answer) == 2 and hasattr(answer[0], "__len__"):
        return [int(t) for t in answer[0]], [float(p) for p in answer[1]]
    return [int(t) for t in answer], [0.0] * len(answer)


def _cut(
    tokens: list[int], logprobs: list[float], request: Request, max_length: int, decode: Decode | None
) -> tuple[list[int], list[float], Finish]:
    """The turn up to its first stop token or string, or the limits that hold for every engine."""
    room = max_length - len(request.token_ids)
    limit = min(request.sampling.max_tokens, room)
    ends = [i for i, t in enumerate(tokens, 1) if t in request.sampling.stop_ids][:1]
    ends.append(stop_length(tokens[:limit], request.sampling.stop, decode) or limit + 1)
    if min(ends) <= limit:
        return tokens[: min(ends)], logprobs[: min(ends)], "stop"
    return tokens[:limit], logprobs[:limit], "context" if len(tokens[:limit]) == room else "length"
