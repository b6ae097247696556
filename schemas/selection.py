"""What a warm-up takes from the log of a run: trajectories by place and digest.

Made by `tasks.selecting` before the stage starts and kept as its data file; eaten by the stage, which trains the stored
ids as they were sampled, and by audits.
"""

from typing import Any

from schemas.base import Document, Section


class Selected(Section):
    """A trajectory that was taken."""

    trajectory: str
    group: int
    sample: int
    task_id: str
    prompt: str
    """Its first user message."""
    step: int
    """The step at which it ended in the ledger."""
    worker: str
    seq: int
    row: int
    row_digest: str
    reward: float


class Selection(Document):
    """Trajectories of one RL stage, up to a ledger head."""

    run: str
    rl: str
    """Key of the RL stage."""
    settings: dict[str, Any]
    """What was asked for."""
    first_step: int
    end_step: int
    """Exclusive."""
    ledger_head: str
    """Digest of the record of the last of these steps."""
    tasks: str
    """Key of the RL stage's tasks."""
    tasks_sha256: str
    tokenizer: str
    chat_format: str
    """Digests of what the ids mean, from the shards."""
    chosen: tuple[Selected, ...]
    """What is imitated, or the better sides of pairs."""
    rejected: tuple[Selected, ...] = ()
    """The worse sides, in the same order; empty where nothing is compared."""
    left_out: dict[str, int] = {}
    """Reason → how many trajectories or groups were not taken for it."""

    @property
    def everything(self) -> tuple[Selected, ...]:
        """Both sides."""
        return self.chosen + self.rejected
