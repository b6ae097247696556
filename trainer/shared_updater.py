"""One updater in several processes: the first orders each call, and all make it, in one order.

The first process alone runs the learner and writes. The others read the rows of a batch from the store's shards
themselves, by the places and digests that the order names.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from schemas.manifest import CheckpointManifest, Numerics, Probe
from storage.pulse import turn
from trainer.assembler import Row
from trainer.updater import Updater

Order = dict[str, Any]
"""A call for all processes: its name under `call`, and its arguments."""
Partners = Callable[[], AbstractContextManager[None]]
"""Around work that processes do together: tells the loss of one from other errors."""
Result = TypeVar("Result")
WAIT_SECONDS = 1.0
"""How often a first process that waits says so."""


class Trains(Updater, Protocol):
    """An updater that tells adapters from the weights that they are part of."""

    @property
    def trained(self) -> Any:
        """What updates change: all parameters, or adapters."""
        ...


class Leader:
    """Gives orders by `say`, and a sign of life where there was none to give for a while."""

    def __init__(self, say: Callable[[Order], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._said = clock()

    def order(self, call: str, **values: Any) -> None:
        """Have the others make a call."""
        self._say({"call": call, **values})
        self._said = self._clock()

    def turn(self) -> bool:
        """A turn of the learner's loop: as `storage.pulse.turn`, and a sign to those that listen."""
        if self._clock() - self._said >= WAIT_SECONDS:
            self.order("wait")
        return turn()


class SharedUpdater:
    """Implements `trainer.updater.Updater` in the first process."""

    def __init__(self, own: Trains, leader: Leader, partners: Partners = nullcontext) -> None:
        self._own, self._leader, self._partners = own, leader, partners

    def update(self, rows: tuple[Row, ...], advantages: tuple[float, ...]) -> dict[str, float]:
        return self._all(lambda: self._own.update(rows, advantages), "update", rows=_named(rows), advantages=advantages)

    def reference_gap(self, rows: tuple[Row, ...]) -> NDArray[np.float64]:
        return self._all(lambda: self._own.reference_gap(rows), "reference_gap", rows=_named(rows))

    def probe(self) -> Probe:
        return self._all(self._own.probe, "probe")

    @property
    def params(self) -> Any:
        return self._all(lambda: self._own.params, "params")

    @property
    def trained(self) -> Any:
        return self._all(lambda: self._own.trained, "trained")

    def params_digest(self) -> str:
        return self._all(self._own.params_digest, "params_digest")

    def optimizer_digest(self) -> str:
        return self._all(self._own.optimizer_digest, "optimizer_digest")

    def save(self, step: int, learner: str) -> tuple[str, dict[str, str], str]:
        return self._all(lambda: self._own.save(step, learner), "save", step=step, learner=learner)

    def load(self, manifest: CheckpointManifest) -> None:
        self._all(lambda: self._own.load(manifest), "load", manifest=manifest.model_dump(mode="json"))

    def numerics(self) -> Numerics:
        return self._own.numerics()

    def _all(self, make: Callable[[], Result], call: str, **values: Any) -> Result:
        self._leader.order(call, **values)
        with self._partners():
            return make()


def _named(rows: tuple[Row, ...]) -> list[list[Any]]:
    """Where each row stands, and its digest."""
    return [[*row.place, row.digest] for row in rows]
