"""The world that the agent acts in: two letters, of which it says the one that comes first in the alphabet.

One object is one episode of one task: `self.task` has `id`, `prompt`, `answer`, and further fields in `extra`. A method
that blocks should be a plain `def`, which runs in a thread.
"""

from collections.abc import Mapping, Sequence

from rollout.agents import Action
from rollout.environments import BaseTaskEnv, StepResult
from rollout.rewards import answer
from schemas.messages import Message


class FirstLetter(BaseTaskEnv):
    """Asks again until the agent says one of the two letters, or `max_turns` is over."""

    async def reset(self) -> Sequence[Message]:
        """What the agent is asked."""
        return [Message("user", self.task.prompt)]

    async def step(self, action: Action) -> StepResult:
        """What an action leads to: an answer ends the episode, anything else is asked again."""
        if action.text.strip() in self.task.extra["letters"]:
            return StepResult(done=True)
        return StepResult([Message("user", "a letter")])

    async def reward(self, messages: Sequence[Message]) -> Mapping[str, float]:
        """Asked once, when `step` said done. `reward` is trained on, `success` counted, other parts recorded."""
        right = float(answer(messages) == self.task.answer)
        return {"reward": right, "success": right}

    async def gold(self) -> Sequence[Message]:
        """The turns that solve the task: `headrace validate` proves every one of them."""
        return [Message("assistant", self.task.answer)]
