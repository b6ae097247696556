"""The documents of promotion: what the gate found, and the registry's pointers with their history."""

from typing import Literal

from schemas.base import Document, Section
from schemas.manifest import WeightsRef


class Promotion(Section):
    """One entry of a channel's history."""

    ref: str
    """`RUN@STEP`"""
    kind: Literal["gate", "rollback", "candidate"] = "gate"
    """Why it stands here: the gate took it, somebody went back to it, or RL ended with it (channel `candidate`)."""
    by: str = ""
    """Who did it: `user@host`."""
    approved_by: str = ""
    """The person who agreed, where the gate asked for one."""
    weights: WeightsRef
    ledger_head: str
    report: str
    """Key of the gate's evaluation report; empty where no gate looked."""
    decision: str = ""
    """Key of the gate's decision; empty where no gate looked."""
    previous: str
    """The ref that it replaced; empty for the first."""
    reason: str
    time: float


class Channel(Document):
    """A registry pointer: its last entry is the champion."""

    name: str
    channel: str
    history: tuple[Promotion, ...]

    @property
    def champion(self) -> Promotion | None:
        return self.history[-1] if self.history else None


class Check(Section):
    """One condition of the gate."""

    name: str
    """`improvement`, `no_regression/<suite>`, `staleness`, `mismatch`, `audit`, `approval`"""
    ok: bool
    text: str
    """What was found against what was wanted."""


class GateDecision(Document):
    """What the promotion gate found for a run's candidate."""

    candidate: str
    weights_sha256: str
    baseline: str
    baseline_sha256: str
    promoted: bool
    improvement: float
    low: float
    high: float
    """Paired bootstrap interval of the improvement."""
    confidence: float
    reason: str
    checks: tuple[Check, ...] = ()
    """Everything that the gate looked at, in order; a refused one says why."""
    approved_by: str = ""
    """The person who agreed, where one was asked."""
    reports: tuple[str, ...]
    time: float


class Approval(Document):
    """What the gate asks a person about a candidate that passed everything else, and the answer."""

    candidate: str
    weights_sha256: str
    reason: str
    """What the gate found so far."""
    asked: float
    until: float
    """Unix seconds; for people, the gate waits by its own clock."""
    open: bool = True
    """The gate waits for the answer."""
    approved: bool | None = None
    by: str = ""
    """The person who answered."""
    why: str = ""
    """What the person said to it."""
