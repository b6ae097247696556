"""Where every random number comes from: names, never workers or arrival order.

A request's seed is a function of (run seed, group, sample, attempt, turn), so that any worker samples the same tokens.
"""

import hashlib

import numpy as np


def derive(*names: int | str) -> int:
    """A seed in [0, 2**31) from a path of names."""
    text = "/".join(str(n) for n in names)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little") >> 1


def request(run_seed: int, group: int, sample: int, attempt: int, turn: int) -> int:
    """The seed of one request to an engine."""
    return derive("request", run_seed, group, sample, attempt, turn)


def task_index(run_seed: int, count: int, group: int) -> int:
    """Which of `count` tasks a numbered group plays: every epoch is a new permutation of all of them."""
    epoch, place = divmod(group, count)
    order = np.random.default_rng(derive("tasks", run_seed, epoch)).permutation(count)
    return int(order[place])
