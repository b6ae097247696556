"""Questions with a number as their answer, a calculator and a Python interpreter beside them.

`math.toml` names it as `environment = "environment:MathEnvironment"`. A task of `make_data.py` has, beside `prompt` and
`answer`, the `calls` that solve it: pairs of a tool and its argument.
"""

from collections.abc import Mapping, Sequence

from answers import same_answer

from rollout.rewards import answer
from rollout.workspace_environment import WorkspaceEnvironment
from schemas.messages import Message, ToolCall

ARGUMENTS = {"calculator": "expression", "python": "code"}
"""The argument of each tool."""


class MathEnvironment(WorkspaceEnvironment):
    """Tool calls are run and answered; the first turn without one is the agent's answer and ends the episode."""

    async def reward(self, messages: Sequence[Message]) -> Mapping[str, float]:
        """1 for the right number, however it is written. What was called is only recorded."""
        right = float(same_answer(answer(messages), self.task.answer))
        called = [m.name for m in messages if m.role == "tool"]
        return {"reward": right, "success": right, **{name: float(called.count(name)) for name in ARGUMENTS}}

    async def gold(self) -> Sequence[Message]:
        """The task's calls, one a turn, then its answer."""
        calls = [ToolCall(tool, {ARGUMENTS[tool]: text}) for tool, text in self.task.extra.get("calls", [])]
        return [*(Message("assistant", tool_calls=(call,)) for call in calls), Message("assistant", self.task.answer)]
