"""The embedded engine: continuous batching over fixed slots on one thread, weights swapped between dispatches.

The event loop only queues requests and awaits answers; the thread fills prompts in chunks beside decoding, a few tokens
per dispatch. A request's samples depend on its seed and stream alone, not on its slot or neighbours.
"""

import asyncio
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.cache import KVCache, empty_cache
from models.config import DecoderConfig
from models.pure import Params, flatten
from models.pure import shapes as param_shapes
from rollout.engine import (
    SCORED,
    Completion,
    Decode,
    Request,
    check_ids,
    check_request,
    check_scored,
    check_version,
    no_work,
    stop_length,
)
from rollout.jax_batches import (
    ROWS,
    STOPS,
    Chunk,
    copies,
    decode_shape,
    decode_shapes,
    decode_slots,
    empty_chunk,
    next_chunk,
    shapes,
)
from rollout.jax_kernels import copy, decode, prefill, score
from rollout.jax_slots import Job, Settle, Slot, SlotTable
from rollout.threads import settled_elsewhere
from schemas.errors import RequestError, RunStopped

PATIENCE = 4
"""Requests that decode, for each that waits for its prompt, while decoding goes on between two chunks of pre-fill."""


@dataclass(frozen=True)
class _Update:
    params: Params
    version: int
    settle: Settle


@dataclass(frozen=True)
class _Score:
    token_ids: tuple[int, ...]
    settle: Settle


class JaxEngine:
    """Samples from a decoder on this process's devices, in float32. Without `params`, requests wait for an update.

    `slots` sequences decode at once, each of at most `max_length` tokens; requests and weights join between dispatches
    of `decode_steps` tokens. Its cache is of fixed size: rows of sessions that are not decoding serve others when they
    are needed. When weights change, running streams keep their keys and values, or with `recompute` get new ones. All
    programs that sample are compiled when the first weights come, none later, and that of `score` at its first use.
    Requests with stop strings need `decode`.
    """

    def __init__(
        self,
        config: DecoderConfig,
        params: Params | None = None,
        *,
        version: int = -1,
        slots: int = 32,
        max_length: int = 256,
        decode_steps: int = 8,
        recompute: bool = False,
        decode: Decode | None = None,
    ) -> None:
        self.version = version
        self._config, self._context, self._steps, self._text = config, max_length, decode_steps, decode
        self._recompute = recompute
        self._params: Params | None = None
        self._cache: KVCache | None = None
        self._table = SlotTable(slots)
        self._queue: deque[Job] = deque()
        self._released: deque[str] = deque()
        self._updates: deque[_Update] = deque()
        self._scores: deque[_Score] = deque()
        self._wake = threading.Condition()
        """Guards the four queues, the slots' cancellation and what follows."""
        self._closed = False
        self._failure: BaseException | None = None
        self._counters = no_work()
        if params is not None:
            _check_params(config, params, version)
            self._updates.append(_Update(params, version, lambda *_: None))
        self._thread = threading.Thread(target=self._run, name="jax-engine", daemon=True)
        self._thread.start()

    # -- the event loop's side --------------------------------------------------------------------------------

    async def generate(self, request: Request) -> Completion:
        check_request(request, self._context, self._text)
        stop_ids = request.sampling.stop_ids
        if len(stop_ids) > STOPS:
            raise RequestError(f"a request may name {STOPS} stop tokens, not {len(stop_ids)}")
        check_ids((*request.token_ids, *stop_ids), self._config.vocab_size)
        done, settle = settled_elsewhere()
        job = Job(request, settle, time.monotonic())
        with self._wake:
            self._check_running()
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

    async def update_weights(self, params: Params, version: int) -> None:
        _check_params(self._config, params, version)
        done, settle = settled_elsewhere()
        with self._wake:
            self._check_running()
            check_version(self._updates[-1].version if self._updates else self.version, version)
            self._updates.append(_Update(params, version, settle))
            self._wake.notify()
        await done

    async def score(self, token_ids: tuple[int, ...]) -> dict[str, tuple[float, ...]]:
        check_scored(token_ids)
        check_ids(token_ids, self._config.vocab_size)
        done, settle = settled_elsewhere()
        with self._wake:
            self._check_running()
            self._scores.append(_Score(token_ids, settle))
            self._wake.notify()
        return {"the JAX engine": await done}

    def counters(self) -> dict[str, float]:
        return dict(self._counters)

    async def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _check_running(self) -> None:
        if self._failure is not None or self._closed:
            raise _stopped(self._failure)

    # -- the thread's side ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._cache = empty_cache(self._config, len(self._table.slots), self._context)
            while self._wait():
                self._swap()
                self._answer_scores()
                self._admit()
                started = time.monotonic()
                self._fill()
                self._decode()
                self._counters["busy_seconds"] += time.monotonic() - started
        except BaseException as error:  # whatever it was, those who wait must hear of it
            self._end(error)
        else:
            self._end(None)

    def _wait(self) -> bool:
        """Block while there is nothing to do. False once closed."""
        with self._wake:
            self._wake.wait_for(
                lambda: self._closed or self._updates or (self._params is not None and self._has_work())
            )
            return not self._closed

    def _has_work(self) -> bool:
        self._table.free_cancelled()
        return bool(self._queue or self._scores or self._table.jobs())

    def _swap(self) -> None:
        """Take over new weights. Not under the lock: copying large ones takes a while."""
        while self._updates:
            update, first = self._updates[0], self._params is None
            self._params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), update.params)
            if first:
                self._compile()
            else:
                self._table.new_policy(recompute=self._recompute)
            with self._wake:
                self.version = update.version
                self._updates.popleft()
            update.settle(None, None)

    def _answer_scores(self) -> None:
        while self._params is not None and self._scores:
            asked, tokens = self._scores[0], np.zeros(SCORED, np.int32)
            count = len(asked.token_ids)
            tokens[:count] = asked.token_ids
            logprobs = np.asarray(score(self._config, self._params, tokens, jnp.int32(count)))
            with self._wake:
                self._scores.popleft()
            asked.settle(tuple(logprobs[: count - 1].tolist()), None)

    def _compile(self) -> None:
        """Run every program once without work: episodes that grow longer later must not wait for a compiler then."""
        slots = len(self._table.slots)
        self._copy([])
        for shape in shapes(self._context):
            self._prefill(empty_chunk(shape, slots), shape.span)
        for rows, places in decode_shapes(slots, self._context):
            self._dispatch([], rows, places)

    def _copy(self, pairs: list[tuple[int, int]]) -> None:
        self._cache = copy(self._cache, *copies(pairs))

    def _prefill(self, chunk: Chunk, places: int) -> None:
        self._cache = prefill(self._config, self._params, self._cache, *chunk, span=places)

    def _dispatch(self, decoding: list[tuple[Slot, Job]], rows: int, places: int) -> list[np.ndarray]:
        index, slots, columns = decode_slots(decoding, rows, len(self._table.slots))
        self._cache, *out = decode(
            self._config, self._params, self._cache, index, slots, steps=self._steps, span=places
        )
        return [np.asarray(x)[..., columns] for x in out]

    def _admit(self) -> None:
        with self._wake:
            self._table.free_cancelled()
            while self._released:
                self._table.release(self._released.popleft())
            for job in self._table.admit(self._queue, self._context):
                job.started = time.monotonic()
                self._counters["prompt_tokens"] += len(job.request.token_ids)

    def _fill(self) -> None:
        """What can be copied, then a chunk of pre-fill for the requests that have waited longest; further chunks
        while many wait for their prompts: decoding costs much the same for few rows as for all."""
        while True:
            while pairs := self._table.copies(ROWS):
                self._copy(pairs)
            filling = self._table.filling()
            if not filling:
                return
            chunk, shape = next_chunk(filling, len(self._table.slots), self._context)
            self._prefill(chunk, shape.span)
            self._counters["prefilled_tokens"] += int(chunk.counts.sum())
            self._counters["dispatches"] += 1
            if len(self._table.filling()) * PATIENCE <= len(self._table.decoding()):
                return

    def _decode(self) -> None:
        """A few tokens for every slot whose prompt is in the cache."""
        decoding = self._table.decoding()
        if not decoding:
            return
        rows, places = decode_shape(decoding, len(self._table.slots), self._context)
        tokens, logprobs, counts = self._dispatch(decoding, rows, places)
        self._counters["dispatches"] += 1
        for i, (slot, job) in enumerate(decoding):
            self._take(slot, job, tokens[: counts[i], i].tolist(), logprobs[: counts[i], i].tolist())

    def _take(self, slot: Slot, job: Job, tokens: list[int], logprobs: list[float]) -> None:
        """Note what one dispatch sampled, up to a stop string, and answer the request if it is done."""
        known = len(job.tokens)
        length = stop_length([*job.tokens, *tokens], job.request.sampling.stop, self._text, known)
        if length is not None:
            job.stopped, tokens, logprobs = True, tokens[: length - known], logprobs[: length - known]
        slot.cached += [job.last, *tokens[:-1]]
        job.tokens += tokens
        job.logprobs += logprobs
        job.versions += [self.version] * len(tokens)
        self._counters["generated_tokens"] += len(tokens)
        finish = job.finish(self._context)
        if finish is not None:
            self._table.free(slot)
            job.settle(_completion(job, finish, time.monotonic()), None)

    def _end(self, failure: BaseException | None) -> None:
        """Fail everyone who waits, and, by `_check_running`, everyone who comes."""
        with self._wake:
            self._failure, self._closed = failure, True
            for waiting in (*self._table.jobs(), *self._queue, *self._updates, *self._scores):
                waiting.settle(None, _stopped(failure))
            self._queue.clear()
            self._updates.clear()
            self._scores.clear()


def _completion(job: Job, finish: Any, now: float) -> Completion:
    return Completion(
        token_ids=tuple(job.tokens),
        logprobs=tuple(job.logprobs),
        versions=tuple(job.versions),
        finish=finish,
        queue_seconds=job.started - job.queued,
        generate_seconds=now - job.started,
    )


def _stopped(failure: BaseException | None) -> RunStopped:
    if failure is None:
        return RunStopped("the engine is closed")
    error = RunStopped(f"the JAX engine failed: {type(failure).__name__}: {failure}")
    error.__cause__ = failure
    return error


def _check_params(config: DecoderConfig, params: Params, version: int) -> None:
    """RequestError for weights of another model: they would be compiled anew, or fail all that is running."""
    wanted, given = param_shapes(config), {name: tuple(x.shape) for name, x in flatten(params).items()}
    for name in sorted(wanted.keys() | given.keys()):
        if wanted.get(name) != given.get(name):
            raise RequestError(
                f"policy {version} is not of the engine's model: {name} has shape {given.get(name, 'none')}, "
                f"not {wanted.get(name, 'none')}"
            )
