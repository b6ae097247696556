"""An agent keeps one conversation and turns what the model said into an action for the environment.

Single use: one agent per episode. Hooks are coroutines; a subclass may write them as plain functions, which then run
in threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from models.chat import ParsedTurn
from rollout.hooks import at_once
from rollout.tools import ToolManager
from schemas.messages import Message, ToolSpec


@dataclass(frozen=True)
class Action:
    """What an agent does in one turn; environments take it in `step`."""

    message: Message
    """What the model said; its `tool_calls` are the calls to run."""
    error: str = ""
    """What is malformed in the model's tool calls, in a sentence for the model."""

    @property
    def text(self) -> str:
        return self.message.content


class ConversationAgentBase:
    """Holds the messages of an episode. Subclasses decide which tools are offered and what a turn means."""

    @at_once
    def __init__(self, system_prompt: str = "", tools: ToolManager | None = None) -> None:
        self.system_prompt = system_prompt
        self.tools = tools or ToolManager()
        self.messages: list[Message] = []

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The tools that the model is told of."""
        return ()

    @at_once
    async def start(self, observation: Sequence[Message]) -> list[Message]:
        """The conversation's opening, from the environment's first observation."""
        system = [Message("system", self.system_prompt)] if self.system_prompt else []
        self.messages = [*system, *observation]
        return list(self.messages)

    @at_once
    async def update_from_env(self, observation: Sequence[Message]) -> list[Message]:
        """Take in the environment's answer; returns the messages that the model is to see."""
        self.messages.extend(observation)
        return list(observation)

    @at_once
    async def update_from_model(self, turn: ParsedTurn) -> Action:
        """Take in what the model said; returns what is done in the environment."""
        self.messages.append(turn.message)
        return Action(turn.message, turn.error)


class ModelAgent(ConversationAgentBase):
    """Answers in plain text and is offered no tools; what looks like a tool call is only text."""

    @at_once
    async def update_from_model(self, turn: ParsedTurn) -> Action:
        message = replace(turn.message, tool_calls=())
        self.messages.append(message)
        return Action(message)


class ToolAgent(ConversationAgentBase):
    """May call tools before it answers."""

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        return self.tools.specs
