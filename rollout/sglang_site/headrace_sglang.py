"""An SGLang server for Headrace: tokens in and out over HTTP, weights swapped between two tokens.

    python headrace_sglang.py --model FOLDER --port 8000 --max-model-len 256 --max-num-seqs 32

SGLang-JAX has no endpoint for new weights, names no weights, and gives log-probs after temperature. This starts its
scheduler in one process and speaks to it as `rollout/vllm_client.py` speaks to vLLM, in the same words.
"""

import argparse
import asyncio
import json
import os
import threading
import traceback
from concurrent.futures import Future
from typing import Any

from aiohttp import web
from headrace_cures import check_heads, corrected, sample_as_the_jax_engine, scale_rotations
from headrace_scheduler import Aborted, Served, sampling_of
from sgl_jax.srt.server_args import ServerArgs
from sgl_jax.version import __version__

SPARE = 8
"""Tokens of room that SGLang wants beyond a request's own."""
LONG_SECONDS = 1e6
"""SGLang's own deadline for a step, at which it would end its parent: whoever asks has one already."""
PADDINGS = (64, 256, 1024, 4096)
"""Numbers of prompt tokens of a step that are compiled."""


def main() -> None:
    asked = arguments()
    if asked.attention_backend == "native":
        check_heads(asked.model)
    sample_as_the_jax_engine()
    scale_rotations()
    served = Served(settings(asked), asked.max_model_len)
    threading.Thread(target=_run, args=(served,), daemon=True).start()
    app = Server(served).app()
    web.run_app(
        app,
        host=asked.host,
        port=asked.port,
        handler_cancellation=True,
        access_log=None,
        print=None,
        shutdown_timeout=1.0,
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--max-prefill-tokens", type=int, default=2048)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--attention-backend", default="native")
    return parser.parse_args()


def settings(asked: argparse.Namespace) -> ServerArgs:
    """No overlapping of steps and no cut prompts, so that between two steps everything is known."""
    room, places = asked.max_model_len + SPARE, asked.max_num_seqs + 1  # one for scores
    prefill = max(asked.max_prefill_tokens, room)
    os.environ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
    return ServerArgs(
        model_path=asked.model, device=asked.device, dtype=asked.dtype, attention_backend=asked.attention_backend,
        skip_tokenizer_init=True, disable_overlap_schedule=True, enable_deterministic_sampling=True,
        chunked_prefill_size=-1, max_prefill_tokens=prefill, context_length=room, max_running_requests=places,
        max_total_tokens=places * room, precompile_token_paddings=[p for p in PADDINGS if places <= p < prefill],
        precompile_bs_paddings=sorted({(places + 3) // 4, places}), disable_precompile=True, mem_fraction_static=0.5,
        page_size=1, log_level="warning", watchdog_timeout=LONG_SECONDS,
        json_model_override_args=json.dumps(corrected(asked.model)),
    )  # fmt: skip


def _run(served: Served) -> None:
    """Serve; a loop that ends takes the process with it, having said why."""
    try:
        served.run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


class Server:
    """The endpoints."""

    def __init__(self, served: Served) -> None:
        self._served = served

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**28, middlewares=[_told])
        for method, path, handler in (
            ("GET", "/health", self._health), ("GET", "/v1/models", self._models),
            ("POST", "/inference/v1/generate", self._generate), ("POST", "/collective_rpc", self._rpc),
            ("POST", "/pause", self._pause), ("POST", "/resume", self._resume),
            ("POST", "/update_weight_version", self._called), ("POST", "/reset_prefix_cache", self._reset),
        ):  # fmt: skip
            app.router.add_route(method, path, handler)
        return app

    async def _do(self, work: Any, *arguments: Any) -> Any:
        return await asyncio.wrap_future(self._served.post(lambda: work(*arguments)))

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "headrace", "max_model_len": self._served.context}]})

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        asked, tokens = body["sampling_params"], body["token_ids"]
        size = self._served.shape()["vocab_size"]
        if not tokens or len(tokens) >= self._served.context or any(not 0 <= t < size for t in tokens):
            raise Aborted(f"give 1 to {self._served.context - 1} token ids from 0 to {size - 1}")
        if "prompt_logprobs" not in asked:
            return web.json_response(_answer(await self._turn(tokens, asked)))
        scored = await self._do(self._served.score, tokens)
        pairs = zip(tokens[1:], scored["prompt"][1:], strict=True)
        found = [None, *[{str(token): {"logprob": float(p)}} for token, p in pairs]]
        return web.json_response(_answer(scored) | {"prompt_logprobs": found})

    async def _turn(self, tokens: list[int], asked: dict[str, Any]) -> dict[str, Any]:
        """Sample; a caller who goes takes the request with it."""
        done: Future[dict[str, Any]] = Future()
        sampling = sampling_of(asked)
        begun = self._served.post(lambda: self._served.ask(tokens, sampling, done))
        try:
            await asyncio.shield(asyncio.wrap_future(begun))
            return await asyncio.shield(asyncio.wrap_future(done))
        except asyncio.CancelledError:
            self._served.post(lambda: self._served.cancel(begun.result(0)))
            raise

    async def _rpc(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["method"] == "headrace_describe":
            told = {"sglang": __version__, "model": self._served.shape(), "rank": 0, "adapters": []}
            return web.json_response({"results": [told]})
        if body["method"] == "headrace_load":
            return web.json_response({"results": [await self._do(self._served.load, *body["args"])]})
        raise Aborted(f"there is no method {body['method']}")

    async def _pause(self, _: web.Request) -> web.Response:
        await self._do(self._served.pause)
        return web.json_response({})

    async def _resume(self, _: web.Request) -> web.Response:
        await self._do(self._served.resume)
        return web.json_response({})

    async def _called(self, request: web.Request) -> web.Response:
        await self._do(self._served.call_weights, (await request.json())["new_version"])
        return web.json_response({"success": True})

    async def _reset(self, _: web.Request) -> web.Response:
        return web.json_response({"success": await self._do(self._served.forget)})


def _answer(turn: dict[str, Any]) -> dict[str, Any]:
    """As vLLM says it."""
    choice = {
        "token_ids": turn["tokens"],
        "logprobs": {"content": [{"logprob": p} for p in turn["logprobs"]]},
        "weight_versions": turn["spans"],
    }
    return {"choices": [choice], "usage": {"prompt_tokens_details": {"cached_tokens": turn["cached"]}}}


@web.middleware
async def _told(request: web.Request, handler: Any) -> web.StreamResponse:
    """Errors in the words of vLLM's endpoints: 400 for what can't be served, 500 for what failed."""
    try:
        return await handler(request)
    except Aborted as error:
        status, message = 400, str(error)
    except web.HTTPException:
        raise
    except Exception as error:
        traceback.print_exc()
        status, message = 500, f"{type(error).__name__}: {error}"
    return web.json_response({"error": {"message": message}}, status=status)


if __name__ == "__main__":
    main()
