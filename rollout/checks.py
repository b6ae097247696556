"""What environments return, checked: it is somebody else's code, and nonsense must cost its own episode only."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rollout.environments import StepResult
from rollout.episode import EpisodeEnded, plain
from rollout.rewards import Reward, check_score
from schemas.messages import Message
from schemas.trajectory import Status


def observed(messages: object, where: str, limit: int) -> list[Message]:
    """The messages of an observation; `limit` is the number of characters that they may have together."""
    if not isinstance(messages, list | tuple) or not all(isinstance(m, Message) for m in messages):
        raise _nonsense(f"{where} returned {type(messages).__name__}, not a list of Messages")
    if not all(isinstance(m.content, str) for m in messages):
        raise _nonsense(f"{where} returned a message whose content is not text")
    size = sum(len(m.content) + (len(str(m.facts)) if m.facts else 0) for m in messages)
    if size > limit:
        raise EpisodeEnded(
            Status.FLOODED, f"{where} returned {size} characters, environment.max_observation is {limit}"
        )
    return [replace(m, content=plain(m.content)) for m in messages]


def checked_step(result: object, limit: int) -> StepResult:
    """A step's result."""
    if not isinstance(result, StepResult):
        raise _nonsense(f"step returned {type(result).__name__}, not a StepResult")
    if not isinstance(result.done, bool | np.bool_):
        raise _nonsense(f"step's done is {type(result.done).__name__}, not a bool")
    reward = scored(result.reward, "a step's reward", limit).total
    return StepResult(observed(result.messages, "step", limit), reward, bool(result.done))


def scored(value: object, name: str, limit: int) -> Reward:
    """The reward in what a reward hook returned; `limit`: characters that its parts may have, 8 for each number."""
    if isinstance(value, Mapping):
        size = sum(8 + len(str(part)) for part in value)
        if size > limit:
            raise EpisodeEnded(
                Status.FLOODED,
                f"{name} returned {len(value)} parts of {size} characters, environment.max_observation is {limit}",
            )
    try:
        return check_score(value, name)
    except ValueError as error:
        raise _nonsense(str(error)) from error


def _nonsense(detail: str) -> EpisodeEnded:
    return EpisodeEnded(Status.ENVIRONMENT_ERROR, detail)
