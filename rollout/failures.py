"""Telling a broken set-up from unlucky episodes: a run in which everything fails stops with the first cause."""

from schemas.errors import RunStopped
from schemas.trajectory import Trajectory

ALIKE = 16
"""So many failed attempts in a row with one cause, over several groups, stop the run …"""
ANY = 64
"""… or so many in a row whatever their causes."""
GROUPS = 3
"""One bad task must not stop a run."""


class FailureStreak:
    """Watches finished attempts; one that can be trained breaks the streak."""

    def __init__(self) -> None:
        self._length = 0
        self._cause = ""
        self._alike = True
        self._groups: set[int] = set()

    def note(self, row: Trajectory) -> None:
        """Take in a finished attempt. RunStopped with the first cause when everything fails."""
        if not row.failed:
            self.__init__()
            return
        cause = f"{row.status}: {row.detail}" if row.detail else row.status
        self._cause = self._cause or cause
        self._alike &= cause == self._cause
        self._length += 1
        self._groups.add(row.group)
        if len(self._groups) >= GROUPS and self._length >= (ALIKE if self._alike else ANY):
            raise RunStopped(
                f"the last {self._length} episodes all failed, the first with {self._cause} (task {row.task_id}): "
                f"correct the environment or its settings and run again"
            )
