"""Tools of any server of the Model Context Protocol: subclass MCPServer, and name the class in `environment.tools`.

The server is asked for its tools when the configuration is loaded. Each episode has a server process of its own,
started by the first call of one of its tools and ended with the episode.
"""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any, ClassVar

from rollout.mcp_session import Command, MCPSession
from rollout.tools import BaseTool, ToolError, ToolOutput
from schemas.errors import RequestError

LIST_SECONDS = 60.0
"""For a server to start and say what tools it has."""
MAX_TEXT = 6000
"""Characters of an answer that the model sees."""


class MCPServer:
    """A server and which of its tools are offered."""

    command: ClassVar[tuple[str, ...]]
    """The program and its arguments."""
    variables: ClassVar[Mapping[str, str]] = {}
    """Environment variables beside PATH, HOME, LOGNAME, SHELL, TERM and USER."""
    only: ClassVar[tuple[str, ...]] = ()
    """Names of the tools that are offered; empty: all."""

    def tools(self) -> "list[MCPTool]":
        """A tool for each that is offered. Blocks; RequestError where the server fails or has not all of `only`."""
        command = Command(self.command, self.variables)
        found = {spec.name: spec for spec in _listed(command)}
        missing = [name for name in self.only if name not in found]
        if missing:
            known = ", ".join(found)
            raise RequestError(f"the MCP server `{self.command[0]}` has no tool `{missing[0]}`: it has {known}")
        return [MCPTool(command, found[n].name, found[n].description, found[n].parameters) for n in self.only or found]


class MCPTool(BaseTool):
    """One tool of a server."""

    def __init__(self, command: Command, name: str, description: str, parameters: dict[str, Any]) -> None:
        self._command, self._session = command, MCPSession(command)
        self.name, self.description, self.parameters = name, description, parameters  # type: ignore[misc]

    def for_episode(self, shared: dict[Any, Any]) -> "MCPTool":
        made = MCPTool(self._command, self.name, self.description, self.parameters)
        made._session = shared.setdefault(id(self._command), made._session)
        return made

    async def apply(self, **arguments: Any) -> ToolOutput:
        answer = await self._session.call(self.name, arguments)
        if answer.error:
            raise ToolError(answer.text[:MAX_TEXT])
        facts = {"mcp": {"server": self._command.words[0], "truncated": len(answer.text) > MAX_TEXT}}
        return ToolOutput(answer.text[:MAX_TEXT], facts=facts)

    async def close(self) -> None:
        await self._session.close()


def _listed(command: Command) -> list[Any]:
    """The tools of a server, asked on an event loop of its own, since the caller may be on one."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            found.extend(asyncio.run(asyncio.wait_for(_ask(command), LIST_SECONDS)))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise _refused(command, failed[0]) from failed[0]
    return found


def _refused(command: Command, error: BaseException) -> RequestError:
    if isinstance(error, RequestError):
        return error
    cause = f"no answer within {LIST_SECONDS:g} s" if isinstance(error, TimeoutError) else f"{error}"
    return RequestError(f"the MCP server `{' '.join(command.words)}` did not say what tools it has: {cause}")


async def _ask(command: Command) -> list[Any]:
    session = MCPSession(command)
    try:
        return await session.tools()
    finally:
        await session.close()
