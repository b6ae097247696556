"""Generalized advantage estimation (Schulman et al., 2015, arXiv 1506.02438) over the tokens that a policy sampled.

A step of the decision process is a sampled token: prompts, tools' answers and all else that was fed belong to the state
and are passed over, so they neither discount nor earn. The reward comes with the last sampled token.
"""

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
EQUAL = 1e-12
"""Variance of returns that are taken to be equal: rewards are at most 1, and rounding leaves some 1e-32."""


def gae(values: Values, mask: Values, rewards: Values, gamma: float, decay: float) -> tuple[Values, Values]:
    """[N, T] advantages and returns of sampled tokens, 0 elsewhere.

    `values` [N, T]: of the state in which a token was sampled; `mask` [N, T]: 1 where one was; `rewards` [N]: at each
    line's end. delta = r + gamma V' - V; A = delta + gamma decay A', where ' is the line's next sampled token; the
    return is A + V.
    """
    advantages = np.zeros_like(values)
    after, value_after, earned = np.zeros(len(values)), np.zeros(len(values)), rewards.astype(np.float64)
    for t in reversed(range(values.shape[1])):
        sampled = mask[:, t] > 0
        delta = earned + gamma * value_after - values[:, t]
        found = delta + gamma * decay * after
        advantages[:, t] = np.where(sampled, found, 0.0)
        after = np.where(sampled, found, after)
        value_after = np.where(sampled, values[:, t], value_after)
        earned = np.where(sampled, 0.0, earned)
    return advantages, (advantages + values) * mask


def whitened(advantages: list[Values], masks: list[Values]) -> list[Values]:
    """The micro-batches' advantages with mean 0 and variance 1 over all their sampled tokens together."""
    chosen = np.concatenate([a[m > 0] for a, m in zip(advantages, masks, strict=True)])
    mean, deviation = (chosen.mean(), chosen.std()) if chosen.size else (0.0, 1.0)
    return [(a - mean) / (deviation + 1e-8) * m for a, m in zip(advantages, masks, strict=True)]


def explained(returns: list[Values], values: list[Values], masks: list[Values]) -> float:
    """The share of the returns' variance that the values account for: 1 is all; below 0 is worse than their mean; 0
    where the returns are equal but for rounding."""
    true, told = (np.concatenate([x[m > 0] for x, m in zip(xs, masks, strict=True)]) for xs in (returns, values))
    spread = true.var() if true.size else 0.0
    return float(1.0 - (true - told).var() / spread) if spread > EQUAL else 0.0
