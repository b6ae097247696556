"""How an episode is scored: a function of the task and the conversation, picked by name.

A function returns one number, or named numbers of which `reward` is the total and `success` (1 or 0) may say whether
the task was solved; without it a task counts as solved from a reward of 1.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from rollout.hooks import at_once
from schemas.data import Task
from schemas.messages import Message

Score = float | Mapping[str, float]
RewardFunction = Callable[[Task, Sequence[Message]], Score | Awaitable[Score]]


@dataclass(frozen=True)
class Reward:
    """An episode's total and its named parts."""

    total: float = 0.0
    components: tuple[tuple[str, float], ...] = ()


FINISH = "finish"
"""The tool whose call is a final answer."""


def answer(messages: Sequence[Message]) -> str:
    """The text of the final answer, trimmed, if the last message is the assistant's: what it gave to the tool `finish`,
    or its text if it calls no tool."""
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant":
        return ""
    finished = [c.arguments.get("answer", "") for c in last.tool_calls if c.name == FINISH]
    return str(finished[0]).strip() if finished else "" if last.tool_calls else last.content.strip()


@at_once
def exact_match(task: Task, messages: Sequence[Message]) -> float:
    """1 where the final answer is the task's answer, both trimmed, compared as text; else 0."""
    return float(answer(messages) == task.answer.strip())


REWARDS: dict[str, RewardFunction] = {"exact_match": exact_match}


def check_score(value: object, name: str) -> Reward:
    """The reward in what a function returned; ValueError says what is wrong with it."""
    if isinstance(value, Mapping):
        parts = {str(k): _number(v, f"{name}[{k!r}]") for k, v in value.items()}
        if "reward" not in parts:
            raise ValueError(f"{name} returned parts without `reward`, their total")
        return Reward(parts.pop("reward"), tuple(parts.items()))
    total = _number(value, name)
    return Reward(total, ((name, total),))


def _number(value: object, name: str) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} returned {type(value).__name__}, not a number") from error
    except OverflowError as error:
        raise ValueError(f"{name} returned a number that is too large") from error
    if not math.isfinite(number):
        raise ValueError(f"{name} returned {number}, not a finite number")
    return number
