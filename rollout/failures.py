"""Telling a broken set-up from unlucky episodes: a run in which everything fails stops with the first cause."""

from schemas.errors import RunStopped
from schemas.trajectory import Status, Trajectory

ALIKE = 16
"""So many failed attempts in a row with one cause, over several groups, stop the run …"""
ANY = 64
"""… or so many in a row whatever their causes."""
GROUPS = 3
"""One bad task must not stop a run."""


class FailureStreak:
    """Watches finished attempts; one that can be trained breaks the streak."""

    def __init__(self) -> None:
        self._failed: list[Trajectory] = []

    def note(self, row: Trajectory) -> None:
        """Take in a finished attempt. One that was not played says nothing of the set-up."""
        if row.status == Status.QUARANTINED:
            return
        self._failed = [*self._failed, row] if row.failed else []

    def check(self) -> None:
        """RunStopped with the first cause when everything fails."""
        causes = {_cause(r) for r in self._failed}
        groups = {r.group for r in self._failed}
        if len(groups) >= GROUPS and len(self._failed) >= (ALIKE if len(causes) == 1 else ANY):
            first = self._failed[0]
            raise RunStopped(
                f"the last {len(self._failed)} episodes all failed, the first with {_cause(first)} (task "
                f"{first.task_id}): correct the environment or its settings and run again"
            )


def _cause(row: Trajectory) -> str:
    return f"{row.status}: {row.detail}" if row.detail else row.status
