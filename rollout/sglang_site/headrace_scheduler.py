"""SGLang's scheduler as Headrace needs it: asked and told between two steps of its loop, in its own thread.

Requests, scores, cancellations and new weights are work that the loop does where it would look for requests. What was
sampled is told with the spans of tokens that each name of weights sampled.
"""

import json
import queue
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import psutil
from flax import nnx
from sgl_jax.srt.managers.communication import CommunicationBackend
from sgl_jax.srt.managers.io_struct import AbortReq, PauseGenerationReqInput, TokenizedGenerateReqInput
from sgl_jax.srt.managers.schedule_batch import FINISH_ABORT, ScheduleBatch
from sgl_jax.srt.managers.scheduler import Scheduler
from sgl_jax.srt.sampling.sampling_params import SamplingParams
from sgl_jax.srt.server_args import ServerArgs

SHAPE = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "tie_word_embeddings",
)  # fmt: skip
"""What tells models apart in a `config.json`; the probe sees the rest."""
PAUSED_SECONDS = 0.05
"""How long a paused loop waits for work before it looks again."""
IDLE_SECONDS = 1.0


class Aborted(Exception):
    """The request was cancelled, or the scheduler would not serve it."""


@dataclass
class Turn:
    """A request on its way."""

    done: "Future[dict[str, Any]]"
    names: list[tuple[int, str]] = field(default_factory=list)
    """From which of its tokens on weights of which name sample."""


class Mailbox(CommunicationBackend):
    """What the scheduler's loop takes for its requests: work to do between two steps."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self.paused: Callable[[], bool] = lambda: False
        self.aborted: Callable[[str], None] = lambda _: None

    def post(self, work: Callable[[], Any]) -> "Future[Any]":
        """Have `work` done by the loop; what it returns or raises."""
        done: Future[Any] = Future()
        self._work.put((work, done))
        return done

    def recv_requests(self) -> list[Any]:
        self._do_all(PAUSED_SECONDS if self.paused() else None)
        return []

    def wait_for_new_requests(self, timeout: float = 0.0) -> None:
        self._do_all(IDLE_SECONDS)

    def send_pyobj(self, result: Any) -> None:
        if isinstance(result, AbortReq):
            self.aborted(result.rid)

    def _do_all(self, patience: float | None) -> None:
        """Do what waits, having waited for something to do for as long as `patience`."""
        while True:
            try:
                work, done = self._work.get(patience is not None, patience)
            except queue.Empty:
                return
            patience = None
            if done.set_running_or_notify_cancel():
                _settle(work, done)


def _settle(work: Callable[[], Any], done: "Future[Any]") -> None:
    """Tell the asker of a refusal; any other error leaves the scheduler in an unknown state, and ends the loop too."""
    try:
        done.set_result(work())
    except (Aborted, OSError) as error:
        done.set_exception(error)
    except Exception as error:
        done.set_exception(error)
        raise


class Served:
    """A model in SGLang's scheduler. Everything but `post` and `run` belongs to the thread of `run`."""

    def __init__(self, settings: ServerArgs, context: int) -> None:
        self.context, self.name = context, "default"
        self._mailbox, self._turns = Mailbox(), dict[str, Turn]()
        self._scheduler = Scheduler(settings, communication_backend=self._mailbox)
        self._scheduler.model_config.hf_eos_token_id = None  # a turn ends by its request's own stop tokens
        self._scheduler.stream_output = self._told
        self._scheduler.tp_worker.parent_process = psutil.Process()  # what a failing thread ends: not the guard above
        self._mailbox.paused = lambda: self._scheduler._engine_paused
        self._mailbox.aborted = self._abort_turn
        self.post = self._mailbox.post

    def run(self) -> None:
        """Serve, until an error."""
        self._scheduler.event_loop_normal()

    # -- requests ----------------------------------------------------------------------------------------------

    def ask(self, token_ids: list[int], sampling: SamplingParams, done: "Future[dict[str, Any]]") -> str:
        """Begin a turn, whose tokens, log-probs and names of weights `done` will have. Its number, for `cancel`."""
        return self._begin(token_ids, sampling, done, return_output_logprob_only=True)

    def cancel(self, number: str) -> None:
        self._scheduler.abort_request(AbortReq(rid=number))

    def score(self, token_ids: list[int]) -> dict[str, Any]:
        """A turn of one token, with the log-probs of its prompt, by a step of its own beside what is running.

        In a batch with requests that want no log-probs of their prompts, SGLang mixes them up.
        """
        scheduler, done = self._scheduler, Future[dict[str, Any]]()
        sampling = sampling_of({"max_tokens": 1, "temperature": 0.0, "seed": 0})
        kept = scheduler.waiting_queue, scheduler.running_batch
        scheduler.waiting_queue, scheduler.running_batch = [], self._no_batch()
        try:
            self._begin(token_ids, sampling, done, return_logprob=True, logprob_start_len=0)
            batch = scheduler.get_new_batch_prefill()
            if batch is None:
                raise Aborted("there is no room for the tokens to score")
            scheduler.process_batch_result(batch, scheduler.run_batch(batch))
        finally:
            scheduler.waiting_queue, scheduler.running_batch = kept
        return done.result(0)

    def _no_batch(self) -> ScheduleBatch:
        s = self._scheduler
        return ScheduleBatch.init_new(
            reqs=[[]], req_to_token_pool=s.req_to_token_pool, token_to_kv_pool_allocator=s.token_to_kv_pool_allocator,
            tree_cache=s.tree_cache, model_config=s.model_config, enable_overlap=False, dp_size=1, mesh=s.mesh,
            spec_algorithm=s.spec_algorithm,
        )  # fmt: skip

    def _begin(self, token_ids: list[int], sampling: SamplingParams, done: "Future[Any]", **logprobs: Any) -> str:
        number = uuid.uuid4().hex
        self._turns[number] = Turn(done, [(0, self.name)])
        self._scheduler.handle_generate_request(
            TokenizedGenerateReqInput(
                rid=number, input_ids=token_ids, sampling_params=sampling, dp_rank=0, top_logprobs_num=0, **logprobs
            )
        )
        return number

    def _told(self, requests: list[Any], *_: Any, **__: Any) -> None:
        """What the scheduler calls after each step in place of `stream_output`."""
        for request in requests:
            if not request.finished() or request.finished_output:
                continue
            request.finished_output = True
            turn = self._turns.pop(request.rid)
            if isinstance(request.finished_reason, FINISH_ABORT):
                turn.done.set_exception(Aborted(str(request.finished_reason.message)))
                continue
            tokens = [int(t) for t in request.output_ids_through_stop]
            turn.done.set_result(
                {
                    "tokens": tokens,
                    "logprobs": [float(p) for p in request.output_token_logprobs_val[: len(tokens)]],
                    "spans": spans(turn.names, len(tokens)),
                    "prompt": request.input_token_logprobs_val or [],
                    "cached": request.cached_tokens,
                }
            )

    def _abort_turn(self, number: str) -> None:
        turn = self._turns.pop(number, None)
        if turn is not None:
            turn.done.set_exception(Aborted("it was cancelled"))

    # -- weights -----------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Sample no more, and take what is running back to the queue, its tokens kept.

        A batch whose prompts were just read is counted among the running first: SGLang would forget it.
        """
        scheduler, last = self._scheduler, self._scheduler.last_batch
        if last is not None and last.forward_mode.is_extend():
            last.filter_batch()
            if scheduler.running_batch.is_empty():
                scheduler.running_batch = last
            elif not last.is_empty():
                scheduler.running_batch.merge_batch(last)
        scheduler.last_batch = None
        scheduler.pause_generation(PauseGenerationReqInput(mode="retract"))

    def resume(self) -> None:
        self._scheduler._engine_paused = False

    def load(self, folder: str) -> dict[str, Any]:
        """Take over the weights of a Hugging Face folder; what keeps it from doing so is in `refused`."""
        held, given = self.shape(), json.loads((Path(folder) / "config.json").read_text())
        other = [key for key in SHAPE if None not in (held[key], given.get(key)) and held[key] != given[key]]
        if other:
            key = other[0]
            return {"refused": f"it serves a model of {key} {held[key]}, and this run's has {given[key]}"}
        runner = self._scheduler.tp_worker.model_runner
        runner.model_config.model_path = folder
        runner.model.load_weights(runner.model_config)
        leaves = jax.tree.leaves(nnx.split(runner.model)[1])
        if [x.shape for x in leaves] != [x.shape for x in runner.model_state_leaves]:
            return {"refused": "its tensors have other shapes than those that are served"}
        runner.model_state_leaves = leaves
        return {}

    def call_weights(self, name: str) -> None:
        """What the weights in use are called from here on; the requests under way remember it."""
        if self._turns and not self._scheduler._engine_paused:
            raise Aborted("pause before weights get another name: turns are being sampled")
        self.name = name
        for request in self._scheduler.waiting_queue:
            self._turns[request.rid].names.append((len(request.output_ids), name))

    def forget(self) -> bool:
        """Let go of all keys and values. Whether it did: only a paused scheduler can."""
        scheduler = self._scheduler
        waiting, scheduler.waiting_queue = scheduler.waiting_queue, []
        done, _, _ = scheduler.flush_cache()
        scheduler.waiting_queue = waiting
        return done

    def shape(self) -> dict[str, Any]:
        config = self._scheduler.model_config.hf_config
        return {key: getattr(config, key, None) for key in SHAPE}


def sampling_of(asked: dict[str, Any]) -> SamplingParams:
    """SGLang's sampling parameters for those of a request as vLLM has them. Seeds go through its int32."""
    seed = int(asked.get("seed") or 0)
    banned = [int(token) for token in asked.get("logit_bias") or {}]
    sampling = SamplingParams(
        max_new_tokens=asked["max_tokens"], temperature=asked["temperature"], top_p=asked.get("top_p", 1.0),
        top_k=asked.get("top_k") or -1, stop_token_ids=asked.get("stop_token_ids"),
        sampling_seed=seed - 2**32 if seed >= 2**31 else seed, min_p=float(min(banned, default=0)),
    )  # fmt: skip
    sampling.normalize(None)
    return sampling


def spans(names: list[tuple[int, str]], count: int) -> list[dict[str, Any]]:
    """Which of `count` tokens were sampled by weights of which name."""
    ends = [start for start, _ in names[1:]] + [count]
    return [
        {"version": name, "start": start, "end": end}
        for (start, name), end in zip(names, ends, strict=True)
        if start < end
    ]
