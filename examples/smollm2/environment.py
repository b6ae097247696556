"""Problems of `reasoning-gym`, scored by the generator that made them.

`smollm2.toml` names it as `environment = "environment:ReasoningGym"`; `make_data.py` writes the task files. A task's
`dataset` and `metadata` are what its generator needs to score an answer, so other generators work alike.
"""

import re
from collections.abc import Sequence

from rollout.environments import TaskEnvironment
from rollout.rewards import answer
from schemas.errors import RequestError
from schemas.messages import Message

try:
    from reasoning_gym import get_score_answer_fn
except ImportError as error:
    raise RequestError(
        "the package reasoning-gym, which scores the answers of this example, is missing: pip install '.[smollm2]'"
    ) from error

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")


class ReasoningGym(TaskEnvironment):
    """One turn; the last number in the reply is the answer. A reply cut off by the limit of tokens earns nothing."""

    def reward(self, messages: Sequence[Message]) -> dict[str, float]:
        """The generator's score from 0 to 1; `success` where it is full."""
        task = self.task
        entry = {"question": task.prompt, "answer": task.answer, "metadata": task.extra["metadata"]}
        score = float(get_score_answer_fn(task.extra["dataset"])(last_number(answer(messages)), entry))
        return {"reward": score, "success": float(score >= 1.0)}


def last_number(text: str) -> str:
    """The last number in a text, "" where there is none: small models say the whole equation."""
    found = NUMBER.findall(text)
    return found[-1] if found else ""
