"""Reading and writing what is known of tasks that do harm. A change is a compare-and-swap on one document."""

from collections.abc import Callable

from schemas import keys
from schemas.quarantine import TaskTrouble
from storage.documents import read_document, read_generation
from storage.objects import GenerationMismatch, ObjectExists, ObjectStore


def read_trouble(store: ObjectStore, base: str, task: int) -> TaskTrouble | None:
    """What is known of one task; None if nothing."""
    return read_document(store, TaskTrouble, keys.trouble(base, task))


def change_trouble(
    store: ObjectStore, base: str, fresh: TaskTrouble, change: Callable[[TaskTrouble], TaskTrouble]
) -> None:
    """Put `change` of what is known in its place, of `fresh` where nothing is known; changes by others stay."""
    key = keys.trouble(base, fresh.task)
    while True:
        found = read_generation(store, TaskTrouble, key)
        before = found[0] if found else fresh
        after = change(before)
        try:
            if found is None:
                store.create(key, after.to_bytes())
            elif after != before:
                store.swap(key, after.to_bytes(), found[1])
            return
        except (ObjectExists, GenerationMismatch):
            continue


def deadly(store: ObjectStore, base: str) -> int:
    """How many tasks are known to end the workers that play them."""
    return sum(bool(t.deadly) for t in troubles(store, base))


def troubles(store: ObjectStore, base: str) -> list[TaskTrouble]:
    """Everything that is known, by task."""
    found = (read_document(store, TaskTrouble, key) for key in store.list(f"{keys.all_trouble(base)}/"))
    return [t for t in found if t is not None]
