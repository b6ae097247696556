"""A small repository with a bug: view, edit, run its tests, finish. Hidden tests decide.

`coding.toml` names it as `environment = "environment:CodingEnvironment"`. The episode ends with the tool `finish` or
with a turn that calls no tool.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from coding_judge import judge
from coding_repository import repository

from rollout.rewards import RewardFunction, exact_match
from rollout.tools import ToolManager
from rollout.workspace_environment import WorkspaceEnvironment
from schemas.data import Task
from schemas.messages import Message, ToolCall


class CodingEnvironment(WorkspaceEnvironment):
    """The working folder is the repository; its tests may be run and even changed there, which earns nothing."""

    def __init__(
        self,
        task: Task,
        *,
        score: RewardFunction = exact_match,
        tools: ToolManager | None = None,
        sandbox: str = "",
        limits: Mapping[str, Any] | None = None,
    ) -> None:
        self.repository = repository(task)
        opened = replace(task, extra=task.extra | {"files": self.repository.files})
        super().__init__(opened, score=score, tools=tools, sandbox=sandbox, limits=limits)

    async def reward(self, messages: Sequence[Message]) -> dict[str, float]:
        """1 where every hidden test passes, else 0. `hidden` (share that passes) and `visible` are only recorded."""
        verdict = await judge(self.workspace.sandbox, self.repository, self.workspace.folder)
        solved = float(verdict.solved)
        return {"reward": solved, "success": solved, "hidden": verdict.hidden, "visible": float(verdict.visible)}

    def gold(self) -> list[Message]:
        """Look, see the test fail, apply the patch, see it pass, finish."""
        patch = self.repository.patch
        calls = [
            ToolCall("run_tests", {}),
            ToolCall("view", {"path": patch.path}),
            ToolCall("edit", {"path": patch.path, "old": patch.old, "new": patch.new}),
            ToolCall("run_tests", {}),
            ToolCall("finish", {"answer": "done"}),
        ]
        return [Message("assistant", tool_calls=(call,)) for call in calls]
