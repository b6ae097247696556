"""A session with a server of the Model Context Protocol that runs as a child process and speaks over its pipes.

Opening and closing belong to one asyncio task, as the `mcp` package asks; calls may come from any task of its loop.
"""

import asyncio
import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.hooks import detach
from schemas.errors import RequestError
from schemas.messages import ToolSpec


@dataclass(frozen=True)
class Command:
    """How a server is started. It runs with the worker's rights and gets PATH, HOME and the like, and `environment`."""

    words: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    """What a server's tool said."""

    text: str
    error: bool


class MCPSession:
    """One server process, started by the first call and ended by `close`."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Any] | None = None
        self._over = asyncio.Event()

    async def tools(self) -> list[ToolSpec]:
        """All tools of the server."""
        client, found, cursor = await self._client(), [], None
        while True:
            page = await client.list_tools(cursor=cursor)
            found += [ToolSpec(t.name, t.description or "", t.input_schema) for t in page.tools]
            cursor = page.next_cursor
            if not cursor:
                return found

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        """Run a tool. What is no text in its answer is named only."""
        answer = await (await self._client()).call_tool(name, dict(arguments))
        parts = [getattr(c, "text", None) or f"({c.type})" for c in answer.content]
        return Answer("\n".join(parts), bool(answer.is_error))

    async def close(self) -> None:
        """End the server; returns when it has ended. One that has not answered yet is not waited for."""
        self._over.set()
        if self._task is None or self._ready is None:
            return
        if not self._ready.done():
            self._ready.cancel()
            self._task.cancel()
        try:
            await asyncio.wait({self._task})
        except asyncio.CancelledError:
            detach(self._task)  # cancelled once more, it would let go of a server that does not end by itself
            raise

    async def _client(self) -> Any:
        if self._over.is_set():
            raise RuntimeError(f"the session with the MCP server `{self._command.words[0]}` is closed")
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._task = asyncio.ensure_future(self._serve(self._ready))
        return await asyncio.shield(self._ready)

    async def _serve(self, ready: asyncio.Future[Any]) -> None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                ready.set_result(await stack.enter_async_context(_connection(self._command)))
                await self._over.wait()
        except Exception as error:
            if ready.done():  # the server had ended before it was told to: its calls have failed already
                return
            ready.set_exception(error)


def _connection(command: Command) -> contextlib.AbstractAsyncContextManager[Any]:
    try:
        import mcp  # type: ignore[import-not-found]  # an extra
    except ImportError as error:
        raise RequestError("tools of MCP servers need the package `mcp`: install headrace[mcp]") from error
    first, *rest = command.words
    parameters = mcp.StdioServerParameters(command=first, args=rest, env=dict(command.environment))
    return mcp.Client(mcp.stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr))
