"""The embedded engine: continuous batching over fixed slots on one thread, weights swapped between dispatches.

The event loop only queues requests and awaits answers; the thread fills prompts in chunks beside decoding, a few tokens
per dispatch. A request's samples depend on its seed and stream alone, not on its slot or neighbours.
"""

import asyncio
import threading
import time
from collections import deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.cache import KVCache, empty_cache
from models.config import DecoderConfig
from rollout.engine import Completion, Request, check_version
from rollout.jax_kernels import Slots, decode, prefill
from rollout.jax_slots import Job, Slot, SlotTable, finished
from schemas.errors import RequestError, RunStopped

_CHUNKS = (16, 64, 256)
"""Tokens per row of one pre-fill dispatch."""
_ROWS = 8
"""Rows of one pre-fill dispatch."""
_STOPS = 4
"""Stop tokens that a request may name."""


class JaxEngine:
    """Samples from a decoder on this process's devices."""

    def __init__(
        self,
        config: DecoderConfig,
        params: Any = None,
        *,
        version: int = -1,
        slots: int = 32,
        max_length: int = 256,
        decode_steps: int = 4,
    ) -> None:
        self.version = version
        self._config, self._context, self._steps = config, max_length, decode_steps
        self._params = jax.device_put(params) if params is not None else None
        self._cache: KVCache = empty_cache(config, slots, max_length)
        self._table = SlotTable(slots)
        self._queue: deque[Job] = deque()
        self._released: deque[str] = deque()
        self._update: tuple[Any, int, Any] | None = None
        self._wake = threading.Condition()
        self._closed, self._failure = False, ""
        self._counters = {"prompt_tokens": 0.0, "prefilled_tokens": 0.0, "generated_tokens": 0.0, "busy_seconds": 0.0}
        self._thread = threading.Thread(target=self._run, name="jax-engine", daemon=True)
        self._thread.start()

    # -- the event loop's side --------------------------------------------------------------------------------

    async def generate(self, request: Request) -> Completion:
        self._check(request)
        done, finish = _future()
        job = Job(request, finish, time.monotonic())
        with self._wake:
            if self._failure or self._closed:
                raise RunStopped(self._failure or "the engine is closed")
            self._queue.append(job)
            self._wake.notify()
        try:
            return await done
        except asyncio.CancelledError:
            with self._wake:
                job.cancelled = True
                self._wake.notify()
            raise

    def release(self, session: str) -> None:
        with self._wake:
            self._released.append(session)

    async def update_weights(self, params: Any, version: int) -> None:
        check_version(self.version, version)
        done, finish = _future()
        with self._wake:
            if self._failure or self._closed:
                raise RunStopped(self._failure or "the engine is closed")
            self._update = (params, version, finish)
            self._wake.notify()
        await done

    def counters(self) -> dict[str, float]:
        return dict(self._counters)

    async def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _check(self, request: Request) -> None:
        if not request.token_ids or len(request.token_ids) >= self._context:
            raise RequestError(
                f"a stream of {len(request.token_ids)} tokens leaves no room in a context of {self._context}: "
                f"raise rollout.max_length or shorten the prompt"
            )
        if len(request.sampling.stop_ids) > _STOPS:
            raise RequestError(f"a request may name {_STOPS} stop tokens, not {len(request.sampling.stop_ids)}")

    # -- the thread's side ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait():
                started = time.monotonic()
                self._fill()
                self._decode()
                self._counters["busy_seconds"] += time.monotonic() - started
        except BaseException as error:  # whatever it was, those who wait must hear of it
            self._fail(f"the JAX engine failed: {type(error).__name__}: {error}")
        else:
            self._fail("the engine is closed")

    def _wait(self) -> bool:
        """Take in what has arrived; block while there is nothing to do. False once closed."""
        with self._wake:
            while True:
                self._take_in()
                if self._closed:
                    return False
                if self._table.jobs():
                    return True
                self._wake.wait()

    def _take_in(self) -> None:
        if self._update is not None:
            (params, version, finish), self._update = self._update, None
            self._params, self.version = jax.device_put(params), version
            finish(None, None)
        self._table.free_cancelled()
        while self._released:
            self._table.release(self._released.popleft())
        if self._params is None:
            return
        for slot in self._table.admit(self._queue, self._context):
            if slot.job is not None:
                slot.job.started = time.monotonic()
                self._counters["prompt_tokens"] += len(slot.job.request.token_ids)

    def _fill(self) -> None:
        """One chunk of pre-fill for the slots that need it most."""
        filling = self._table.filling()[:_ROWS]
        if not filling:
            return
        longest = max(len(s.pending) for s in filling)
        chunk = next((c for c in _CHUNKS if c >= longest), _CHUNKS[-1])
        rows = np.full(_ROWS, len(self._table.slots), np.int32)  # out of range: dropped
        tokens = np.zeros((_ROWS, chunk), np.int32)
        lengths, counts = np.zeros(_ROWS, np.int32), np.zeros(_ROWS, np.int32)
        for i, slot in enumerate(filling):
            part, slot.pending = slot.pending[:chunk], slot.pending[chunk:]
            rows[i], lengths[i], counts[i] = slot.index, len(slot.cached), len(part)
            tokens[i, : len(part)] = part
            slot.cached += part
        self._cache = prefill(self._config, self._params, self._cache, rows, tokens, lengths, counts)
        self._counters["prefilled_tokens"] += int(counts.sum())

    def _decode(self) -> None:
        """A few tokens for every slot whose prompt is in the cache."""
        decoding = self._table.decoding()
        if not decoding:
            return
        version = self.version
        slots = self._arrays(decoding)
        span = _span(max(len(s.cached) for s in decoding) + self._steps + 1, self._context)
        out = decode(self._config, self._params, self._cache, slots, steps=self._steps, span=span)
        self._cache = out[0]
        tokens, logprobs, active = (np.asarray(x) for x in out[2:])
        for slot in decoding:
            taken = active[:, slot.index]
            self._take(slot, tokens[taken, slot.index].tolist(), logprobs[taken, slot.index].tolist(), version)

    def _take(self, slot: Slot, tokens: list[int], logprobs: list[float], version: int) -> None:
        job = slot.job
        if job is None:
            return
        last = job.tokens[-1] if job.tokens else job.request.token_ids[-1]
        slot.cached += [last, *tokens[:-1]]
        job.tokens += tokens
        job.logprobs += logprobs
        job.versions += [version] * len(tokens)
        self._counters["generated_tokens"] += len(tokens)
        finish = finished(job, self._context)
        if finish is None:
            return
        slot.job = None
        now = time.monotonic()
        queue, generate = job.started - job.queued, now - job.started
        done = (tuple(job.tokens), tuple(job.logprobs), tuple(job.versions))
        job.finish(Completion(*done, finish=finish, queue_seconds=queue, generate_seconds=generate), None)

    def _arrays(self, decoding: list[Slot]) -> Slots:
        count = len(self._table.slots)
        ints = {k: np.zeros(count, np.int32) for k in ("token", "length", "budget")}
        active, temperature = np.zeros(count, bool), np.zeros(count, np.float32)
        seed, stops = np.zeros(count, np.uint32), np.full((count, _STOPS), -1, np.int32)
        for slot in decoding:
            job, i = slot.job, slot.index
            if job is None:
                continue
            sampling = job.request.sampling
            ints["token"][i] = job.tokens[-1] if job.tokens else job.request.token_ids[-1]
            ints["length"][i], ints["budget"][i] = len(slot.cached), job.budget - len(job.tokens)
            active[i], temperature[i], seed[i] = True, sampling.temperature, job.request.seed
            stops[i, : len(sampling.stop_ids)] = sampling.stop_ids
        arrays = {k: jnp.asarray(v) for k, v in ints.items()}
        return Slots(
            **arrays,
            active=jnp.asarray(active),
            temperature=jnp.asarray(temperature),
            seed=jnp.asarray(seed),
            stop_ids=jnp.asarray(stops),
        )

    def _fail(self, cause: str) -> None:
        with self._wake:
            self._failure = cause
            waiting = [*self._table.jobs(), *self._queue]
            self._queue.clear()
            for job in waiting:
                job.finish(None, RunStopped(cause))
            if self._update is not None:
                self._update[2](None, RunStopped(cause))


def _span(needed: int, context: int) -> int:
    """Cache places to attend to: the next power of two, so that few lengths are compiled."""
    span = 64
    while span < needed:
        span *= 2
    return min(span, context)


def _future() -> tuple["asyncio.Future[Any]", Any]:
    """A future of the running loop and a function that settles it from any thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def from_thread(result: Any, error: BaseException | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    return future, from_thread
