"""What a run remembers of a task that does harm: in which groups nothing of it worked, and whether it ended processes.

One document for each such task, in the folder of the RL stage: it outlives workers and resumes, and all workers read
it. A task on which everything works has none.
"""

from schemas.base import Document


class TaskTrouble(Document):
    """The trouble with one task of an RL stage."""

    task: int
    """Its place in the task file, from 0."""
    task_id: str
    groups: tuple[int, ...] = ()
    """Groups since it last worked in which every sample failed its last attempt."""
    cause: str = ""
    """How the last sample of them failed."""
    deadly: str = ""
    """That workers ended while they played it, in a sentence; empty if none did."""

    def reason(self, after: int) -> str:
        """Why it is not played, in a sentence; empty if it is. `after`: `rollout.quarantine_after`, 0 for never."""
        if not after:
            return ""
        if self.deadly:
            return f"task {self.task_id} is in quarantine: {self.deadly}"
        if len(self.groups) < after:
            return ""
        return (
            f"task {self.task_id} is in quarantine: every attempt at it failed in {len(self.groups)} groups in a row, "
            f"the last with {self.cause}"
        )
