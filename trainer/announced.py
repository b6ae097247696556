"""An updater whose long calls are announced to the supervisor, so that a slow one is not taken for a hung one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.manifest import CheckpointManifest, Numerics, Probe
from storage.pulse import Repeated, busy
from trainer.assembler import Row
from trainer.updater import Updater


class AnnouncedUpdater:
    """Implements `trainer.updater.Updater` by another one. `seconds`: the longest that one call may take."""

    def __init__(self, updater: Updater, seconds: float) -> None:
        self._updater, self._seconds = updater, seconds
        self._update = Repeated("an update", seconds)
        self._save = Repeated("saving a checkpoint", seconds)
        self._look = Repeated("log-probs of the reference policy", seconds)
        self._probe = Repeated("log-probs of the probe", seconds)
        self._digest = Repeated("a digest of the parameters", seconds)

    def update(self, rows: tuple[Row, ...], advantages: tuple[float, ...]) -> dict[str, float]:
        with self._update.once():
            return self._updater.update(rows, advantages)

    def reference_gap(self, rows: tuple[Row, ...]) -> NDArray[np.float64]:
        with self._look.once():
            return self._updater.reference_gap(rows)

    def probe(self) -> Probe:
        with self._probe.once():
            return self._updater.probe()

    @property
    def params(self) -> Any:
        return self._updater.params

    def params_digest(self) -> str:
        with self._digest.once():
            return self._updater.params_digest()

    def optimizer_digest(self) -> str:
        with self._digest.once():
            return self._updater.optimizer_digest()

    def save(self, step: int, learner: str) -> tuple[str, dict[str, str], str]:
        with self._save.once():
            return self._updater.save(step, learner)

    def load(self, manifest: CheckpointManifest) -> None:
        with busy("loading a checkpoint", self._seconds):
            self._updater.load(manifest)

    def numerics(self) -> Numerics:
        return self._updater.numerics()
