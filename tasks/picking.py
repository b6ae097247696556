"""Which trajectories of a log are worth learning from: pure decisions, the same whenever they are made."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from schemas.warm_ups import RunPairs, RunSamples

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Row:
    """A trajectory that ended in the ledger, as far as picking looks at it."""

    step: int
    group: int
    sample: int
    task_id: str
    reward: float
    stream: str
    """Digest of its tokens and of which were sampled."""
    prompt: str
    """Digest of the tokens before the first that was sampled."""

    @property
    def order(self) -> tuple[int, int, int]:
        return self.step, self.group, self.sample


def samples(rows: Iterable[Row], settings: RunSamples) -> tuple[list[Row], Counter[str]]:
    """What to imitate, in the order of the ledger, and how many rows were left out for which reason."""
    left_out: Counter[str] = Counter()
    good = [r for r in rows if _taken(r.reward >= settings.min_reward, "reward below min_reward", left_out)]
    once = _once(sorted(good, key=_best_first), lambda r: r.stream, left_out)
    of_groups = _at_most(once, settings.per_group, lambda r: r.group, "more than per_group", left_out)
    picked = _at_most(of_groups, settings.per_task, lambda r: r.task_id, "more than per_task", left_out)
    return sorted(picked, key=lambda r: r.order), left_out


def pairs(rows: Iterable[Row], settings: RunPairs) -> tuple[list[tuple[Row, Row]], Counter[str]]:
    """(better, worse) of each group that has both, in the order of the ledger, and how many groups were left out."""
    left_out: Counter[str] = Counter()
    groups: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    found = [p for g in groups.values() if (p := _pair(g, settings, left_out)) is not None]
    found.sort(key=lambda p: (p[1].reward - p[0].reward, *_best_first(p[0])))
    once = _once(found, lambda p: (p[0].stream, p[1].stream), left_out)
    picked = _at_most(once, settings.per_task, lambda p: p[0].task_id, "more than per_task", left_out)
    return sorted(picked, key=lambda p: p[0].order), left_out


def _pair(group: Sequence[Row], settings: RunPairs, left_out: Counter[str]) -> tuple[Row, Row] | None:
    best = min(group, key=lambda r: (-r.reward, r.sample))
    worst = min(group, key=lambda r: (r.reward, r.sample))
    if best.reward == worst.reward:
        return _none("equal rewards", left_out)
    if best.reward < settings.min_reward:
        return _none("best reward below min_reward", left_out)
    if best.stream == worst.stream:
        return _none("equal sides", left_out)
    return (best, worst) if best.prompt == worst.prompt else _none("different prompts", left_out)


def _best_first(row: Row) -> tuple[float, int, int, int]:
    """Of equals the newest; within a group the first."""
    return -row.reward, -row.step, row.group, row.sample


def _once(items: Iterable[_Item], key: Callable[[_Item], Hashable], left_out: Counter[str]) -> list[_Item]:
    return _at_most(items, 1, key, "repeated", left_out)


def _at_most(
    items: Iterable[_Item], most: int | None, key: Callable[[_Item], Hashable], why: str, left_out: Counter[str]
) -> list[_Item]:
    seen: Counter[Hashable] = Counter()
    kept = []
    for item in items:
        seen[key(item)] += 1
        if _taken(most is None or seen[key(item)] <= most, why, left_out):
            kept.append(item)
    return kept


def _taken(taken: bool, why: str, left_out: Counter[str]) -> bool:
    left_out[why] += not taken
    return taken


def _none(why: str, left_out: Counter[str]) -> None:
    left_out[why] += 1
