"""The tombstone of a checkpoint: what it was, and by which rule its files were removed."""

from typing import Literal

from schemas.base import Document
from schemas.manifest import WeightsRef


class Expired(Document):
    """Stands beside a checkpoint's manifest, which stays. Only `headrace gc` writes it, by compare-and-swap."""

    state: Literal["marked", "expired", "kept"]
    """`marked`: about to expire, nothing is removed yet; `expired`: for ever, files are being or have been removed;
    `kept`: was marked, but something had come to refer to it."""
    run: str
    rl: str
    step: int
    params_sha256: str
    optimizer_sha256: str
    policy: WeightsRef
    """The weights that were removed with the snapshot."""
    ledger_head: str
    rule: str
    """The settings that did not keep it."""
    files: int
    bytes: int
    """What was there to remove."""
    time: float
    """Unix seconds."""
