"""An HTTP server in OpenAI's form on this machine's loopback, where programs ask the policy.

Every episode has a URL of its own, `http://127.0.0.1:PORT/e/TOKEN/v1`, which is its key as well: what is sent as an API
key is not looked at. A client that hangs up takes its request with it.
"""

import json
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from rollout.program_answers import chunks, error, models, one_model, whole
from rollout.program_line import Line
from rollout.program_requests import Asked, Refused, read_request
from schemas.config import Rollout

OVER = 10_000
"""Episodes that are remembered as over; older ones are unknown."""


def largest_request(rollout: Rollout) -> int:
    """Bytes that a request may have: far more than fits into the context, with room for tools and JSON."""
    return (1 << 18) + 64 * rollout.max_length


class Endpoint:
    """Serves the open lines."""

    def __init__(self, largest: int) -> None:
        """`largest`: bytes that a request may have."""
        self._lines: dict[str, Line] = {}
        self._over: deque[str] = deque(maxlen=OVER)
        app = web.Application(middlewares=[self._guarded], client_max_size=largest)
        app.router.add_post("/e/{token}/v1/chat/completions", self._complete)
        app.router.add_get("/e/{token}/v1/models", self._models)
        app.router.add_get("/e/{token}/v1/models/{model}", self._model)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        self._root = ""

    async def start(self) -> None:
        """Listen on a free port."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        self._root = site.name

    async def stop(self) -> None:
        """Close every connection."""
        await self._runner.cleanup()

    def open(self, line: Line) -> tuple[str, str]:
        """Serve a line; returns its URL and its token."""
        token = secrets.token_hex(16)
        self._lines[token] = line
        return f"{self._root}/e/{token}/v1", token

    def close(self, token: str) -> None:
        """Serve it no more."""
        self._lines.pop(token).close()
        self._over.append(token)

    def _line(self, request: web.Request) -> Line:
        token = request.match_info["token"]
        if token in self._lines:
            return self._lines[token]
        if token in self._over:
            raise Refused(410, "episode_over", "the episode is over: its model answers no more")
        raise Refused(404, "episode_not_found", "there is no such episode here: ask at the base URL that was given")

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        line = self._line(request)
        try:
            asked = await _read(request)
        except Refused as refusal:
            line.refused(refusal)
            raise
        try:
            answer = await line.answer(asked)
        except Refused:
            raise
        except Exception as bug:
            line.stop(fatal=bug)
            raise
        if asked.stream:
            told = chunks(answer, logprobs=asked.logprobs, usage=asked.usage)
            return await _streamed(request, [json.dumps(chunk) for chunk in told])
        return web.json_response(whole(answer, logprobs=asked.logprobs))

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(models(self._line(request).limits.model))

    async def _model(self, request: web.Request) -> web.Response:
        known, wanted = self._line(request).limits.model, request.match_info["model"]
        if wanted != known:
            raise Refused(404, "model_not_found", f"the model here is called `{known}`", "model")
        return web.json_response(one_model(known))

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Every refusal in OpenAI's shape."""
        try:
            return await handler(request)
        except Refused as refusal:
            return _refusal(refusal.status, refusal.code, str(refusal), refusal.param)
        except web.HTTPException as failed:
            return _refusal(failed.status, "invalid_request", failed.reason)


async def _read(request: web.Request) -> Asked:
    raw = await request.read()
    try:
        body: Any = json.loads(raw)
    except (ValueError, RecursionError):
        raise Refused(400, "invalid_json", "the body is not JSON") from None
    return read_request(body)


async def _streamed(request: web.Request, events: list[str]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    await response.write("".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode())
    await response.write_eof()
    return response


def _refusal(status: int, code: str, message: str, param: str | None = None) -> web.Response:
    return web.json_response(error(status, code, message, param), status=status)
