"""Many small store calls side by side, where they don't depend on each other: a bucket answers each in tens of ms."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

THREADS = 16

Item = TypeVar("Item")
Found = TypeVar("Found")


def many(call: Callable[[Item], Found], items: Iterable[Item]) -> list[Found]:
    """What `call` gives for each item, in their order. The first failure is raised, and what has not begun is not."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(call, items))
