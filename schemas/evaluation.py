"""The documents of an evaluation: what is to be played, and what came of it."""

from typing import Any

from schemas.base import Document, Section
from schemas.manifest import WeightsRef


class Category(Section):
    """Success on the tasks of one category, with its Wilson interval at the report's confidence."""

    n: int
    success: float
    low: float
    high: float


class EvaluationReport(Document):
    """Success of one weights digest on one task-set digest."""

    name: str
    """What was evaluated, in a word: `warm-up`, `candidate`, …"""
    checkpoint: str
    """`RUN@STEP`, a stage, or a registry entry."""
    weights_sha256: str
    tasks: str
    tasks_sha256: str
    temperature: float
    seed: int
    n: int
    success: float
    low: float
    high: float
    """Wilson interval at `confidence`."""
    confidence: float
    reward: float
    setting: str = ""
    """Which task set it was: `evaluation.tasks`, `promotion.tasks`, `evaluation.suites.<name>`."""
    samples: int = 1
    """Episodes per task."""
    pass_at: dict[int, float] = {}
    """k → chance that at least one of k samples of a task succeeds, averaged over tasks."""
    categories: dict[str, Category] = {}
    """Value of the tasks' field `evaluation.category` → success on the tasks that have it."""
    tokens: float = 0.0
    """Mean tokens of an episode."""
    scores: dict[str, float]
    """Task id → mean success of its samples."""
    statuses: dict[str, int]
    trajectories: str
    """Key prefix of the shards that hold the episodes."""
    code: str
    seconds: float


class EvaluationSpec(Document):
    """What an evaluation process is to do; its report goes to `<output>/report.json`, its shards below `<output>`."""

    run: str
    name: str
    checkpoint: str
    weights: WeightsRef
    config: dict[str, Any]
    folder: str
    environment_sha256: str = ""
    """Digest of the user's modules in `folder`."""
    tasks: str
    """Key of the task file in the store."""
    tasks_sha256: str
    temperature: float
    samples: int
    seed: int
    confidence: float
    setting: str = ""
    output: str
