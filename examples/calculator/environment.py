"""An environment to copy: calculator problems with a reward of your own.

`calculator.toml` names it as `environment = "environment:CalculatorEnvironment"`. One object is one episode of a task.
Every method may be a plain function, which then runs in a thread and may block, or `async def`.
"""

from collections.abc import Sequence

from rollout.environments import ToolEnvironment
from rollout.rewards import answer
from schemas.messages import Message, ToolCall


class CalculatorEnvironment(ToolEnvironment):
    """Tool calls are run and answered; the first turn without one is the agent's answer and ends the episode."""

    # `reset` (the first messages) and `step` (what an action leads to) are inherited; override them for other worlds.

    async def reward(self, messages: Sequence[Message]) -> dict[str, float]:
        """Asked once, at the end. `reward` is what is trained on; the other parts are only recorded."""
        right = float(answer(messages) == self.task.answer)
        used_tool = float(any(m.role == "tool" for m in messages))
        return {"reward": right, "success": right, "used_tool": used_tool}

    def gold(self) -> list[Message]:
        """What solves the task, for `headrace validate`: ask the calculator, then say what it answered."""
        call = ToolCall("calculator", {"expression": self.task.prompt.removesuffix("=?")})
        return [Message("assistant", tool_calls=(call,)), Message("assistant", self.task.answer)]
