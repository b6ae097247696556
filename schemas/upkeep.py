"""How a run is looked after: which of its files are kept, and when a process of it is taken for hung."""

from typing import Annotated

from pydantic import Field

from schemas.base import Count, Positive, PositiveFloat, Section


class Retention(Section):
    """What `headrace gc` keeps of this configuration's runs. What is promoted or started from, and what audits and
    replays need, is always kept."""

    keep_last: Positive = 2
    """Newest checkpoints of every RL stage. Those of the newest `rl.max_staleness` + 2 policies stay too."""
    keep_every: Count = 0
    """Also the checkpoints whose step is a multiple of this; 0: none."""
    min_age_hours: Annotated[float, Field(ge=0)] = 24.0
    """Nothing younger is removed. A run that somebody drives is left alone."""


class Supervision(Section):
    """When a process of the run is taken for hung. It is then ended and started again, as if it had crashed."""

    silence_seconds: PositiveFloat = 60.0
    """A process that makes no progress for so long is hung, unless it has announced long work."""
    work_seconds: PositiveFloat = 1800.0
    """The longest that one piece of announced work may take: compiling, loading weights, the first update, saving a
    checkpoint. Later updates and checkpoints may take ten times the longest before them."""
