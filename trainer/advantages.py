"""Advantages: pure functions from the rewards of one group to a number for each of its trajectories."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Rewards = NDArray[np.float64]


def grpo(rewards: Rewards) -> Rewards:
    """[G] rewards → [G] (reward - mean) / (population standard deviation + 1e-6).

    Group-relative advantages of DeepSeekMath (arXiv 2402.03300), section 4.1. Equal rewards give zeros.

    >>> grpo(np.array([0.0, 1.0])).round(3).tolist()
    [-1.0, 1.0]
    """
    return (rewards - rewards.mean()) / (rewards.std() + 1e-6)


ADVANTAGES: dict[str, Callable[[Rewards], Rewards]] = {"grpo": grpo}
"""By the name in `rl.loss.advantage`."""
