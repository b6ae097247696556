"""Task sets must not share a task: not by id, not by prompt. Otherwise the figures say nothing."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from schemas.data import Task
from schemas.errors import RequestError


def check_leaks(sets: Mapping[str, Sequence[Task]]) -> None:
    """`sets`: setting and file, in words → its tasks. RequestError names the first task that stands in two of them."""
    for (first, a), (second, b) in combinations(sets.items(), 2):
        shared_ids = {t.id for t in a} & {t.id for t in b}
        if shared_ids:
            raise RequestError(f"{first} and {second} share the task id `{min(shared_ids)}`: the sets must not overlap")
        shared = {t.prompt for t in a} & {t.prompt for t in b}
        if shared:
            raise RequestError(f"{first} and {second} share the prompt `{min(shared)[:80]}`: the sets must not overlap")
