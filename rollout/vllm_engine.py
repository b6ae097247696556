"""The engine on vLLM or SGLang servers: tokens in and out of one or more, weights swapped between two tokens.

Requests beyond `slots` a server wait here. What a server was sampling when it died is sampled again with the same seed.
"""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

from models.config import DecoderConfig
from models.tokenizer import Tokenizer
from rollout.engine import (
    Completion,
    EngineUnfit,
    Finish,
    Request,
    check_ids,
    check_request,
    check_scored,
    check_version,
    no_work,
    stop_length,
)
from rollout.vllm_client import Sampled
from rollout.vllm_fleet import VllmFleet
from schemas.config import Servers
from schemas.errors import RunStopped

Found = TypeVar("Found")
BANNED = -100.0
"""What is added to the logits of ids that the tokenizer does not have; the recorded log-probs are without it."""


class VllmEngine:
    """Samples from servers, which `start` or the first request begins with. Without `params`, requests wait."""

    def __init__(
        self,
        config: DecoderConfig,
        params: Any | None,
        tokenizer: Tokenizer,
        settings: Servers,
        *,
        version: int = -1,
        slots: int = 32,
        max_length: int = 256,
    ) -> None:
        self.version = version if params is not None else -1
        self._vocabulary, self._tokenizer = config.vocab_size, tokenizer
        self._settings, self._seconds, self._context = settings, settings.request_seconds, max_length
        self._fleet = VllmFleet(config, settings, max_length, slots)
        self._first, self._newest = params, self.version
        self._starting, self._updating, self._ready = asyncio.Lock(), asyncio.Lock(), asyncio.Event()
        self._places = asyncio.Semaphore(slots * max(1, len(settings.urls)))
        self._calls: set[asyncio.Future[Any]] = set()
        self._closed = False
        self._counters, self._running, self._counted = no_work(), 0, 0.0
        self._bias = {str(token): BANNED for token in range(tokenizer.vocab_size, config.vocab_size)}

    async def start(self) -> None:
        """Start or reach the servers with the first weights; nothing if there are none yet, or it is done."""
        async with self._starting:
            params, self._first = self._first, None
            if params is not None:
                await self._fleet.take(params, self.version)
                self._ready.set()

    async def generate(self, request: Request) -> Completion:
        check_request(request, self._context, self._tokenizer.decode)
        check_ids((*request.token_ids, *request.sampling.stop_ids), self._vocabulary)
        return await self._call(self._turn(request))

    async def score(self, token_ids: tuple[int, ...]) -> dict[str, tuple[float, ...]]:
        check_scored(token_ids)
        check_ids(token_ids, self._vocabulary)
        return await self._call(self._scores(token_ids))

    def release(self, session: str) -> None:
        self._fleet.release(session)

    async def update_weights(self, params: Any, version: int) -> None:
        check_version(self._newest, version)
        self._newest = version
        await self._call(self._update(params, version))

    def counters(self) -> dict[str, float]:
        return self._counters | {"engine_restarts": float(self._fleet.restarts)}

    async def close(self) -> None:
        self._closed = True
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(set(self._calls))
        await self._fleet.close()

    async def _call(self, work: Awaitable[Found]) -> Found:
        """Await what `close` may end."""
        call = asyncio.ensure_future(work)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            self._check_running()
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                self._check_running()
            raise
        finally:
            call.cancel()

    def _check_running(self) -> None:
        if self._closed:
            raise RunStopped("the engine is closed")

    async def _update(self, params: Any, version: int) -> None:
        async with self._updating:
            await self.start()
            await self._fleet.take(params, version)
            self.version = version
            self._ready.set()

    async def _scores(self, token_ids: tuple[int, ...]) -> dict[str, tuple[float, ...]]:
        await self.start()
        await self._ready.wait()
        found = await self._fleet.score(token_ids)
        return {f"{self._settings.label} at {url}": logprobs for url, logprobs in found.items()}

    async def _turn(self, request: Request) -> Completion:
        queued = time.monotonic()
        await self.start()
        await self._ready.wait()
        async with self._places:
            started = time.monotonic()
            self._busy(+1)
            try:
                async with asyncio.timeout(self._seconds):
                    sampled = await self._sampled(request)
            except TimeoutError as error:
                limit = f"{self._settings.part}.request_seconds = {self._seconds:g}"
                raise RunStopped(f"{self._settings.label} took longer over a turn than {limit}") from error
            finally:
                self._busy(-1)
        return self._completion(request, sampled, started - queued, time.monotonic() - started)

    async def _sampled(self, request: Request) -> Sampled:
        wanted, prompt = self._wanted(request), request.token_ids
        sampled, url = await self._fleet.ask(request.session, lambda client: client.sample(prompt, wanted))
        self._check_sampled(url, sampled)
        self._counters["prompt_tokens"] += len(prompt)
        self._counters["prefilled_tokens"] += len(prompt) - sampled.cached
        self._counters["generated_tokens"] += len(sampled.token_ids)
        self._counters["dispatches"] += 1
        return sampled

    def _wanted(self, request: Request) -> dict[str, Any]:
        """Sampling parameters as vLLM has them."""
        asked = request.sampling
        room = self._context - len(request.token_ids)
        wanted = {
            "max_tokens": min(asked.max_tokens, room), "temperature": asked.temperature, "top_p": asked.top_p,
            "top_k": asked.top_k, "seed": request.seed, "stop_token_ids": list(asked.stop_ids),
        }  # fmt: skip
        return wanted | ({"logit_bias": self._bias} if self._bias else {})

    def _check_sampled(self, url: str, sampled: Sampled) -> None:
        size = self._tokenizer.vocab_size
        wrong = [t for t in sampled.token_ids if not 0 <= t < size]
        if wrong:
            raise EngineUnfit(
                f"the server at {url} sampled token {wrong[0]}, but the tokenizer has {size}: it serves another model, "
                f"or lets padding be sampled"
            )

    def _completion(self, request: Request, sampled: Sampled, queue: float, generate: float) -> Completion:
        """The turn, cut where a stop string is complete: servers have no tokenizer here, so it can't look for one."""
        tokens, asked = sampled.token_ids, request.sampling
        cut = stop_length(tokens, asked.stop, self._tokenizer.decode)
        end = len(tokens) if cut is None else cut
        finish: Finish = "stop"
        if cut is None and tokens[-1] not in asked.stop_ids:
            finish = "context" if len(request.token_ids) + end >= self._context else "length"
        return Completion(tokens[:end], sampled.logprobs[:end], sampled.versions[:end], finish, queue, generate)

    def _busy(self, change: int) -> None:
        """Count the time during which servers were at something."""
        now = time.monotonic()
        self._counters["busy_seconds"] += now - self._counted if self._running else 0.0
        self._running, self._counted = self._running + change, now
