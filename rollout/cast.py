"""Who plays: the agent, environment, tools and reward that a configuration names, checked before anything starts."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from models.plugins import load_object
from rollout.agents import ConversationAgentBase, ModelAgent, ToolAgent
from rollout.calculator import CalculatorTool
from rollout.environments import BaseTaskEnv, TaskEnvironment, ToolEnvironment
from rollout.finish import FinishTool
from rollout.function_tools import EpisodeTool, tool_methods
from rollout.hooks import is_at_once
from rollout.mcp_tools import MCPServer
from rollout.programs import ProgramEnvironment
from rollout.rewards import REWARDS, RewardFunction
from rollout.sandbox_choice import choose_sandbox
from rollout.tools import BaseTool, ToolManager
from rollout.workspace_environment import WorkspaceEnvironment, limits_of
from rollout.workspace_tools import EditTool, PythonTool, ShellTool, ViewTool, WorkspaceTool
from schemas.config import Environment
from schemas.data import Task
from schemas.errors import RequestError
from schemas.messages import Message, ToolSpec

AGENTS: dict[str, type[ConversationAgentBase]] = {"ModelAgent": ModelAgent, "ToolAgent": ToolAgent}
ENVIRONMENTS: dict[str, type[BaseTaskEnv]] = {
    "TaskEnvironment": TaskEnvironment,
    "ToolEnvironment": ToolEnvironment,
    "WorkspaceEnvironment": WorkspaceEnvironment,
}
TOOLS: dict[str, type[BaseTool]] = {
    tool.name: tool for tool in (CalculatorTool, FinishTool, PythonTool, ShellTool, ViewTool, EditTool)
}


@dataclass(frozen=True)
class Cast:
    """Makes the players of one episode after another."""

    config: Environment
    agent: type[ConversationAgentBase]
    environment: type[BaseTaskEnv]
    tools: ToolManager
    score: RewardFunction

    @cached_property
    def made_at_once(self) -> bool:
        """Whether making an agent and an environment runs our own code only."""
        return is_at_once(self.agent) and is_at_once(self.environment) and self.tools.made_at_once

    def make_agent(self) -> ConversationAgentBase:
        """A fresh agent for one episode."""
        return self.agent(self.config.system_prompt, self.tools)

    def make_environment(self, task: Task, made: list[BaseTool] | None = None) -> BaseTaskEnv:
        """A fresh environment for one episode, whose tools go to `made` once they are there.

        The user's constructor may block: call it as a hook.
        """
        tools = self.tools.for_episode(made)
        environment = self.environment(task, score=self.score, tools=tools, **self.config.options)
        return _with_own_tools(environment)

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The tools that the model is told of: none for an agent that offers none."""
        return self.make_agent().tool_specs

    def opening(self, task: Task) -> list[Message] | None:
        """The messages that an episode of a task opens with; None where the user's own code makes them."""
        own = self.environment.reset is BaseTaskEnv.reset and self.agent.start is ConversationAgentBase.start
        own = own and not issubclass(self.environment, ProgramEnvironment)
        prompt = self.make_agent().system_prompt if own else ""
        system = [Message("system", prompt)] if prompt else []
        return [*system, Message("user", task.prompt)] if own else None


def load_cast(config: Environment, folder: str) -> Cast:
    """The players that the configuration names; RequestError for a name that leads nowhere or to the wrong kind."""
    environment = _class(config.environment, ENVIRONMENTS, BaseTaskEnv, folder, "environment.environment")
    tools = [tool for name in config.tools for tool in _tools(name, folder)] + tool_methods(environment)
    _check_options(environment, config.options)
    _check_workspace(environment, config, tools)
    _check_program(environment, config)
    return Cast(
        config,
        _class(config.agent, AGENTS, ConversationAgentBase, folder, "environment.agent"),
        environment,
        ToolManager(tools, call_seconds=config.call_seconds),
        _reward(config.reward, folder),
    )


def _with_own_tools(environment: BaseTaskEnv) -> BaseTaskEnv:
    """The environment, whose methods that are tools act on it."""
    tools = getattr(environment, "tools", None)  # its constructor may not have called ours
    if isinstance(tools, ToolManager) and any(isinstance(t, EpisodeTool) for t in tools.tools):
        own = (t.bound(environment) if isinstance(t, EpisodeTool) else t for t in tools.tools)
        environment.tools = tools.replaced(own)
    return environment


def _class(name: str, built_in: dict[str, Any], base: type, folder: str, field: str) -> Any:
    found = built_in.get(name) or _load(name, built_in, folder, field)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise RequestError(f"{field} = `{name}` must be a subclass of {base.__module__}.{base.__name__}")
    return found


def _load(name: str, built_in: dict[str, Any], folder: str, field: str) -> Any:
    if ":" not in name:
        raise RequestError(
            f"{field} = `{name}` is not built in ({', '.join(built_in)} are): use one of them, or `module:Name` for "
            f"something of your own in the configuration's folder"
        )
    return load_object(name, folder, field)


def _tools(name: str, folder: str) -> Sequence[BaseTool]:
    """The tool of a name, or the tools of a server."""
    found = TOOLS.get(name) or _load(name, TOOLS, folder, "environment.tools")
    if isinstance(found, type) and issubclass(found, MCPServer):
        return found().tools()
    return [_tool(name, folder)]


def _tool(name: str, folder: str) -> BaseTool:
    kind = _class(name, TOOLS, BaseTool, folder, "environment.tools")
    try:
        tool = kind()
    except Exception as error:
        raise RequestError(f"environment.tools: `{name}` can't be made ({type(error).__name__}: {error})") from error
    if not isinstance(getattr(tool, "name", None), str):
        raise RequestError(f"environment.tools: `{name}` has no `name`: set it in the class")
    return tool


def _reward(name: str, folder: str) -> RewardFunction:
    found = REWARDS.get(name) or _load(name, REWARDS, folder, "environment.reward")
    if not callable(found):
        raise RequestError(f"environment.reward = `{name}` must be a function of (task, messages)")
    return found


def _check_options(environment: type[BaseTaskEnv], options: dict[str, Any]) -> None:
    """Whether the class can be called as `Cast.make_environment` will."""
    try:
        inspect.signature(environment).bind(None, score=None, tools=None, **options)
    except TypeError as error:
        raise RequestError(
            f"environment.options do not fit {environment.__name__}, which is made from (task, score=, tools=, and the "
            f"options): {error}"
        ) from error


def _check_program(environment: type[BaseTaskEnv], config: Environment) -> None:
    """Whether nothing is set that a program decides itself."""
    if issubclass(environment, ProgramEnvironment) and config.system_prompt:
        raise RequestError(
            "environment.system_prompt is for agents of ours, and a program writes its own messages: leave it out"
        )


def _check_workspace(environment: type[BaseTaskEnv], config: Environment, tools: Sequence[BaseTool]) -> None:
    """Whether tools that need a workspace get one, and its sandbox works here."""
    if issubclass(environment, WorkspaceEnvironment):
        choose_sandbox(config.options.get("sandbox", ""))
        limits_of(config.options.get("limits") or {})
        return
    for tool in tools:
        if isinstance(tool, WorkspaceTool):
            raise RequestError(
                f"environment.tools: `{tool.name}` needs a working folder: set environment.environment to "
                f"`WorkspaceEnvironment` or a subclass of it"
            )
