"""The tool `finish`: the model says with it that the episode is over, and what its final answer is.

Reward functions read the answer with `rollout.rewards.answer`, as they read one that is said in plain text.
"""

from typing import Any, ClassVar

from rollout.rewards import FINISH
from rollout.tools import BaseTool, ToolOutput


class FinishTool(BaseTool):
    """Built in as `finish`. All calls of its turn are run."""

    name: ClassVar[str] = FINISH
    description: ClassVar[str] = "Ends the task. Call it once all is done, with the final answer if there is one."
    parameters: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"answer": {"type": "string", "description": "The final answer"}},
    }
    concurrent: ClassVar[bool] = False

    async def apply(self, answer: str = "") -> ToolOutput:
        return ToolOutput("The task is ended.", ends=True)
