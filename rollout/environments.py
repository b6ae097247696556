"""What an agent acts in. One environment object is one episode of one task, used once.

Hooks are coroutines, which must not block; a subclass may write any of them as a plain function, which then runs in a
thread and may. Each call has a deadline; one that raises, hangs, floods or returns nonsense ends its own episode only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rollout.agents import Action
from rollout.hooks import at_once, call
from rollout.rewards import RewardFunction, Score, exact_match
from rollout.tools import ToolManager, answers
from schemas.data import Task
from schemas.messages import Message


@dataclass(frozen=True)
class StepResult:
    """An environment's answer to an action: messages for the model, a reward for this step, and whether it is over."""

    messages: Sequence[Message] = ()
    reward: float = 0.0
    done: bool = False


class BaseTaskEnv:
    """An episode of a task. Subclasses implement `step`; `environment.options` are further keyword arguments."""

    @at_once
    def __init__(self, task: Task, *, score: RewardFunction = exact_match, tools: ToolManager | None = None) -> None:
        self.task = task
        self.score = score
        self.tools = tools or ToolManager()

    @at_once
    async def reset(self) -> Sequence[Message]:
        """The first observation: what the agent is asked."""
        return [Message("user", self.task.prompt)]

    async def step(self, action: Action) -> StepResult:
        """Take one action."""
        raise NotImplementedError

    async def reward(self, messages: Sequence[Message]) -> Score:
        """The score of the whole conversation, asked once `step` said that the episode is over.

        An episode that ran into a limit first is not asked for: it keeps the rewards of its steps.
        """
        return await call(self.score, self.task, messages)

    async def gold(self) -> Sequence[Message]:
        """The assistant turns that solve the task, in their order; empty where they are not known.

        Asked of an object that plays no episode, before anything is trained, by `headrace validate` and by
        `headrace rollout --policy gold`. Unless overridden: one turn that says the task's `answer`.
        """
        return [Message("assistant", self.task.answer)]

    @at_once
    async def close(self) -> None:
        """Free what the episode holds; called once, whatever happened."""

    @at_once
    async def free_own(self) -> None:
        """Free what this base class itself holds; called after `close`, also where that failed or is overridden."""


class TaskEnvironment(BaseTaskEnv):
    """A single turn: whatever the model says is its answer."""

    async def step(self, action: Action) -> StepResult:
        return StepResult(done=True)


class ToolEnvironment(BaseTaskEnv):
    """Tools until an answer: calls are run and their results returned. A turn without a call ends the episode, and so
    does a call of a tool that says so, such as `finish`."""

    async def step(self, action: Action) -> StepResult:
        if action.error:
            return StepResult([Message("tool", f"Error: {action.error}")])
        if not action.message.tool_calls:
            return StepResult(done=True)
        outputs = await self.tools.outputs(action.message.tool_calls)
        return StepResult(answers(action.message.tool_calls, outputs), done=any(o.ends for o in outputs))
