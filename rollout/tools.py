"""Tools that a model may call, and the manager that runs its calls.

What the model got wrong (an unknown tool, wrong arguments, a ToolError) is answered to the model as text. Any other
exception is the tool's own failure and ends the episode. Calls of one turn run at the same time where their tools allow
it; each ends by itself, whatever becomes of the others, and they are answered in the order of the calls.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, ClassVar

from rollout.hooks import HookTimeout, at_once, is_at_once, within
from rollout.hooks import call as call_hook
from schemas.errors import RequestError, RunStopped
from schemas.messages import Message, ToolCall, ToolSpec

AT_THE_SAME_TIME = 16
"""Calls of one turn that run at the same time, at most: a model may write hundreds."""


class ToolError(Exception):
    """A tool can't do what the model asked; the text is for the model."""


@dataclass(frozen=True)
class ToolOutput:
    """What a call came to. `error` says that `text` tells the model what it got wrong."""

    text: str
    error: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the trajectory keeps beside the text, as JSON; the model does not see it."""
    ends: bool = False
    """Whether the episode is over with this turn."""


class BaseTool:
    """A tool: subclasses set the class fields and implement `apply`, plain or async, taking `parameters` by name.

    A plain `apply` runs in a thread. Raise ToolError for what the model should read.
    """

    name: ClassVar[str]
    description: ClassVar[str] = ""
    parameters: ClassVar[dict[str, Any]] = {"type": "object", "properties": {}}
    """JSON Schema of the arguments (an object schema)."""
    concurrent: ClassVar[bool] = True
    """Whether a call may run beside others of its turn. If not, it begins when those before it have ended, and those
    after it begin when it has."""

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, self.description, self.parameters)

    @at_once
    def for_episode(self, shared: dict[Any, Any]) -> "BaseTool":
        """The tool that one episode uses: itself, unless it holds something for an episode, which `close` frees.

        `shared` is the same for all tools of the episode.
        """
        return self

    @at_once
    async def close(self) -> None:
        """Free what an episode's tool holds. Called once, on what `for_episode` has made."""

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """The result, shown to the model as text; a ToolOutput says more of it."""
        raise NotImplementedError


class ToolManager:
    """The tools of an environment by name."""

    def __init__(self, tools: Iterable[BaseTool] = (), *, call_seconds: float | None = None) -> None:
        """`call_seconds`: how long a call may take before the model reads that it took too long; None: no limit."""
        self._tools: dict[str, BaseTool] = {}
        self._call_seconds = call_seconds
        for tool in tools:
            self.register(tool)

    def register(self, tool: BaseTool) -> None:
        """Add a tool; RequestError where its name is taken."""
        if tool.name in self._tools:
            raise RequestError(f"environment.tools registers a tool named `{tool.name}` twice: rename or drop one")
        self._tools[tool.name] = tool

    def for_episode(self, made: list[BaseTool] | None = None) -> "ToolManager":
        """The tools of one episode. Each goes to `made` once it is there: what to close where a later one fails."""
        shared: dict[Any, Any] = {}
        tools = [] if made is None else made
        for tool in self.tools:
            own = tool.for_episode(shared)
            if not isinstance(own, BaseTool):
                raise TypeError(f"`for_episode` of the tool `{tool.name}` returned {type(own).__name__}, not a tool")
            tools.append(own)
        return self.replaced(tools)

    def replaced(self, tools: Iterable[BaseTool]) -> "ToolManager":
        """A manager of other tools that is like this one otherwise."""
        return ToolManager(tools, call_seconds=self._call_seconds)

    @property
    def made_at_once(self) -> bool:
        """Whether `for_episode` runs no code of the tools' own."""
        return all(is_at_once(tool.for_episode) for tool in self.tools)

    @property
    def holds(self) -> bool:
        """Whether a tool has something to free."""
        return not all(is_at_once(tool.close) for tool in self.tools)

    async def close(self) -> None:
        """Free what the tools of an episode hold."""
        await close_all(self.tools)

    @property
    def tools(self) -> tuple[BaseTool, ...]:
        return tuple(self._tools.values())

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(t.spec for t in self._tools.values())

    async def run(self, call: ToolCall) -> ToolOutput:
        """Run one call."""
        tool = self._tools.get(call.name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return ToolOutput(f"Error: there is no tool {call.name!r}; the tools are: {known}.", error=True)
        wrong = _wrong_arguments(tool.parameters, call.arguments)
        if wrong:
            return ToolOutput(f"Error: {wrong}.", error=True)
        try:
            return await self._in_time(tool, call)
        except ToolError as error:
            return ToolOutput(f"Error: {error}", error=True)
        except HookTimeout:
            text = f"Error: the call took longer than {self._call_seconds:g} s."
            return ToolOutput(text, error=True, facts={"timeout": self._call_seconds})

    async def _in_time(self, tool: BaseTool, call: ToolCall) -> ToolOutput:
        if self._call_seconds is None:
            return await _applied(tool, call)
        return await within(self._call_seconds, _applied(tool, call))

    async def outputs(self, calls: Sequence[ToolCall]) -> list[ToolOutput]:
        """Run the calls of one turn; what each came to, in their order. Where several fail, the first is raised."""
        if len(calls) == 1:
            return [await self.run(calls[0])]
        found: list[ToolOutput] = []
        for together, some in groupby(calls, self._concurrent):
            several = list(some)
            if together and len(several) > 1:
                found += await self._together(several)
            else:
                found += [await self.run(c) for c in several]
        return found

    def _concurrent(self, call: ToolCall) -> bool:
        tool = self._tools.get(call.name)
        return tool is None or tool.concurrent

    async def _together(self, calls: Sequence[ToolCall]) -> list[ToolOutput]:
        places = asyncio.Semaphore(AT_THE_SAME_TIME)

        async def one(call: ToolCall) -> ToolOutput:
            async with places:
                return await self.run(call)

        ended = await asyncio.gather(*map(one, calls), return_exceptions=True)
        failed = [e for e in ended if isinstance(e, BaseException)]
        for error in sorted(failed, key=lambda e: not isinstance(e, RunStopped)):
            raise error
        return [e for e in ended if isinstance(e, ToolOutput)]

    async def execute(self, calls: Sequence[ToolCall]) -> list[Message]:
        """Run the calls of one turn; one tool message each, in their order."""
        return answers(calls, await self.outputs(calls))


async def close_all(tools: Iterable[BaseTool]) -> None:
    """Close tools, each whatever becomes of the others. Raises what the first raised."""

    async def one(tool: BaseTool) -> None:
        await call_hook(tool.close)

    for error in await asyncio.gather(*map(one, tools), return_exceptions=True):
        if isinstance(error, BaseException):
            raise error


def answers(calls: Sequence[ToolCall], outputs: Sequence[ToolOutput]) -> list[Message]:
    """What the model reads of its calls."""
    both = zip(calls, outputs, strict=True)
    return [Message("tool", o.text, name=c.name, tool_call_id=c.id, facts=o.facts) for c, o in both]


async def _applied(tool: BaseTool, call: ToolCall) -> ToolOutput:
    found = await call_hook(tool.apply, **call.arguments)
    if type(found) is ToolOutput:
        return found
    return ToolOutput(found if type(found) is str else await call_hook(str, found))  # its own code writes it


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def _wrong_arguments(schema: dict[str, Any], arguments: dict[str, Any]) -> str:
    """What is wrong with the arguments, or "": names and top-level types are checked, nested schemas are not."""
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in arguments:
            return f"the argument {name!r} is missing"
    for name, value in arguments.items():
        if name not in properties:
            return f"there is no argument {name!r}"
        kind = properties[name].get("type")
        if kind in _TYPES and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
            return f"the argument {name!r} must be of type {kind}"
    return ""
