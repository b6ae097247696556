"""Which tasks are not played any more: those on which everything fails, group after group, or that end their worker.

A task that works once is forgiven. Failures of the engine are not the task's. Verdicts are noted on the event loop and
carried to the store from a thread.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from schemas.config import Run
from schemas.data import Task
from schemas.quarantine import TaskTrouble
from schemas.trajectory import Status, Trajectory
from storage.objects import ObjectStore
from storage.quarantine import change_trouble, read_trouble


@dataclass
class _Group:
    """A group in play: its task's place in the file, and the samples that have not failed for good."""

    task: int
    left: set[int]


class Quarantine:
    """What one worker knows and finds out about the tasks of its RL stage."""

    def __init__(self, store: ObjectStore, base: str, config: Run, tasks: Sequence[Task]) -> None:
        self._store, self._base, self._tasks = store, base, tasks
        self._after, self._attempts = config.rollout.quarantine_after, config.rollout.attempts
        self._groups: dict[int, _Group] = {}
        self._suspected: set[int] = set()
        """Tasks of which the store knows trouble, as far as this worker has seen."""
        self._due: list[tuple[TaskTrouble, Callable[[TaskTrouble], TaskTrouble]]] = []

    # -- from a thread ----------------------------------------------------------------------------------------

    def reason(self, task: int) -> str:
        """Why a task is not to be played, in a sentence; empty if it is."""
        if not self._after:
            return ""
        found = read_trouble(self._store, self._base, task)
        if found is None:
            return ""
        self._suspected.add(task)
        return found.reason(self._after)

    def condemn(self, task: int, cause: str) -> None:
        """Note that a task ends the workers that play it."""
        change_trouble(self._store, self._base, self._fresh(task), lambda t: t.model_copy(update={"deadly": cause}))

    def write(self) -> None:
        """Carry what was found out to the store."""
        while self._due:
            fresh, change = self._due[0]
            change_trouble(self._store, self._base, fresh, change)
            self._due.pop(0)

    # -- on the event loop ------------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether something is to be written."""
        return bool(self._due)

    def plays(self, group: int, task: int, samples: Iterable[int]) -> None:
        """A whole group is played now: what becomes of it counts."""
        self._groups[group] = _Group(task, set(samples))

    def note(self, row: Trajectory) -> None:
        """Take in a finished attempt."""
        group = self._groups.get(row.group)
        if group is None:
            return
        if not row.failed:
            self._worked(row.group, group.task)
        elif row.status == Status.ENGINE_ERROR:
            del self._groups[row.group]
        elif row.attempt % self._attempts == self._attempts - 1:
            group.left.discard(row.sample)
            if not group.left:
                self._failed(row, group.task)

    def forget(self, ended: Callable[[int], bool]) -> None:
        """Groups that have ended count no more."""
        self._groups = {g: state for g, state in self._groups.items() if not ended(g)}

    def _worked(self, group: int, task: int) -> None:
        del self._groups[group]
        if task in self._suspected:
            self._due.append((self._fresh(task), lambda t: t.model_copy(update={"groups": (), "cause": ""})))

    def _failed(self, row: Trajectory, task: int) -> None:
        del self._groups[row.group]
        cause = f"{row.status}: {row.detail}" if row.detail else row.status

        def add(trouble: TaskTrouble) -> TaskTrouble:
            return trouble.model_copy(update={"groups": tuple(sorted({*trouble.groups, row.group})), "cause": cause})

        self._suspected.add(task)
        self._due.append((self._fresh(task), add))

    def _fresh(self, task: int) -> TaskTrouble:
        return TaskTrouble(task=task, task_id=self._tasks[task].id)
