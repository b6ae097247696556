"""What the learner needs of the thing that learns. The learner knows ledgers; an updater knows arrays."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from schemas.manifest import CheckpointManifest, Numerics, Probe
from trainer.assembler import Row


class Updater(Protocol):
    """Parameters and optimizer of a policy, and one optimizer step on a batch."""

    def update(self, rows: tuple[Row, ...], advantages: tuple[float, ...]) -> dict[str, float]:
        """Train on a batch in this order; returns the step's metrics. RunStopped if the update is not finite."""
        ...

    def reference_gap(self, rows: tuple[Row, ...]) -> NDArray[np.float64]:
        """[N] for each row the sum over its sampled tokens of log(sampler / reference): k1 of their divergence."""
        ...

    def probe(self) -> Probe:
        """Probe tokens and the log-probs that the current parameters give them."""
        ...

    @property
    def params(self) -> Any:
        """The current parameters, a pytree of arrays."""
        ...

    def params_digest(self) -> str:
        """SHA-256 of the current parameters."""
        ...

    def optimizer_digest(self) -> str:
        """SHA-256 of the current optimizer state."""
        ...

    def save(self, step: int, learner: str) -> tuple[str, dict[str, str], str]:
        """Store a snapshot; returns its key prefix, the SHA-256 of each file, and the optimizer's digest."""
        ...

    def load(self, manifest: CheckpointManifest) -> None:
        """Restore a snapshot bit by bit; RunStopped if it is damaged."""
        ...

    def numerics(self) -> Numerics:
        """The environment that decides the bytes."""
        ...
