"""Advantages: pure functions from the rewards of one group to a number for each of its trajectories."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from models.plugins import load_object

Rewards = NDArray[np.float64]
Advantage = Callable[[Rewards], Rewards]
"""[G] rewards of a group's survivors (G at least 2, but for `gae`) → [G] advantages."""


def grpo(rewards: Rewards) -> Rewards:
    """[G] rewards → [G] (reward - mean) / (population standard deviation + 1e-6).

    Group-relative advantages of DeepSeekMath (arXiv 2402.03300), section 4.1. Equal rewards give zeros.

    >>> grpo(np.array([0.0, 1.0])).round(3).tolist()
    [-1.0, 1.0]
    """
    return dr_grpo(rewards) / (rewards.std() + 1e-6)


def dr_grpo(rewards: Rewards) -> Rewards:
    """[G] rewards → [G] reward - mean, without the division that favours easy and hard tasks.

    Dr. GRPO (arXiv 2503.20783), section 3.2.

    >>> dr_grpo(np.array([0.0, 1.0])).tolist()
    [-0.5, 0.5]
    """
    return rewards - rewards.mean()


def rloo(rewards: Rewards) -> Rewards:
    """[G] rewards → [G] reward - mean of the others: an unbiased baseline. RLOO (arXiv 2402.14740), equation 8.

    >>> rloo(np.array([0.0, 1.0])).tolist()
    [-1.0, 1.0]
    """
    others = (rewards.sum() - rewards) / (len(rewards) - 1)
    return rewards - others


def rewards_alone(rewards: Rewards) -> Rewards:
    """[G] rewards as they are: the learner's critic makes the advantages of tokens from them (`trainer.gae`).

    >>> rewards_alone(np.array([0.0, 1.0])).tolist()
    [0.0, 1.0]
    """
    return rewards


ADVANTAGES: dict[str, Advantage] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo, "gae": rewards_alone}
"""By the name in `rl.loss.advantage`."""


def find_advantage(name: str, folder: str) -> Advantage:
    """The built-in or the user's own function of this name; RequestError where there is none."""
    return ADVANTAGES[name] if name in ADVANTAGES else load_object(name, folder, "rl.loss.advantage")
