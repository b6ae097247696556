"""What is taken off a trajectory's reward before advantages are formed."""

from collections.abc import Callable, Sequence

import numpy as np

from schemas.algorithms import Loss
from trainer.advantages import Rewards
from trainer.assembler import Row
from trainer.updater import Updater

Shape = Callable[[tuple[Row, ...]], Rewards]
"""[N] rewards that advantages are made from, of the N rows of a batch."""


def shaping(settings: Loss, limit: int, updater: Updater) -> Shape:
    """The stored rewards less the penalties that `rl.loss` asks for. `limit`: `rollout.max_length`."""

    def shape(rows: tuple[Row, ...]) -> Rewards:
        rewards = np.array([r.trajectory.reward for r in rows], np.float64)
        rewards += overlong([len(r.trajectory.tokens) for r in rows], limit, settings)
        if settings.kl == "k1_reward" and rows:
            rewards -= settings.kl_coefficient * updater.reference_gap(rows)
        return rewards

    return shape


def overlong(lengths: Sequence[int], limit: int, settings: Loss) -> Rewards:
    """[N] penalties of episodes by their tokens, 0 or below: the soft penalty of DAPO (arXiv 2503.14476, eq. 13).

    It begins `overlong_tokens` before the limit and reaches -`overlong_penalty` there.
    """
    size = np.asarray(lengths, np.float64)
    if not settings.overlong_tokens:
        return np.zeros_like(size)
    over = (size - (limit - settings.overlong_tokens)) / settings.overlong_tokens
    return -settings.overlong_penalty * np.clip(over, 0.0, 1.0)
