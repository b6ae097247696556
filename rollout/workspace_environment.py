"""Built in as `WorkspaceEnvironment`: tools until a plain answer, in a working folder of the episode's own."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from rollout.environments import ToolEnvironment
from rollout.hooks import call
from rollout.rewards import RewardFunction, exact_match
from rollout.sandbox import Limits
from rollout.sandbox_choice import choose_sandbox
from rollout.tools import ToolManager
from rollout.workspace import Workspace
from rollout.workspace_tools import bound_tools
from schemas.data import Task
from schemas.errors import RequestError
from schemas.messages import Message

OUTPUT_BYTES = 3000
"""Kept of each output unless said otherwise: two of them fit into `environment.max_observation`."""


class WorkspaceEnvironment(ToolEnvironment):
    """The folder starts with the task's `files` (path → text). `self.workspace` is there for rewards and hidden tests.

    Options: `sandbox` ("bubblewrap", "process"; left out: the best that works) and `limits`, by the names of
    `rollout.sandbox.Limits`. A subclass that has its own `reset` calls this one. The folder is removed after `close`.
    """

    def __init__(
        self,
        task: Task,
        *,
        score: RewardFunction = exact_match,
        tools: ToolManager | None = None,
        sandbox: str = "",
        limits: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(task, score=score, tools=tools)
        self.workspace = Workspace(choose_sandbox(sandbox), limits_of(limits or {}))
        self.tools = bound_tools(self.tools, self.workspace)

    async def reset(self) -> Sequence[Message]:
        await call(self.workspace.open, self.task.extra.get("files") or {})
        return await super().reset()

    async def free_own(self) -> None:
        await self.workspace.close()


def limits_of(options: Mapping[str, Any]) -> Limits:
    """The limits in a configuration; RequestError for a name or a value that is none."""
    known = {f.name for f in fields(Limits)}
    for name, value in options.items():
        if name not in known:
            raise RequestError(f"environment.options.limits has no `{name}`: it has {', '.join(sorted(known))}")
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole or (name == "seconds" and isinstance(value, float))) or not 0 < value < float("inf"):
            raise RequestError(f"environment.options.limits.{name} must be a number above 0, not {value!r}")
    return Limits(**{"output_bytes": OUTPUT_BYTES, **options})
