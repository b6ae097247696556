"""A learner's process that follows its first one: it makes the calls that it hears of on an updater of its own."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from schemas.errors import RunStopped
from schemas.manifest import CheckpointManifest
from storage.objects import ObjectStore
from storage.pulse import beat, busy
from trainer.assembler import Row
from trainer.recovery import ShardCache
from trainer.shared_updater import Order, Partners, Trains


class Follower:
    """Follows until it is sent home. It reads shards and checkpoints, and writes nothing. `seconds`: the longest that a
    call may take, and that the first process may be quiet."""

    def __init__(
        self, own: Trains, store: ObjectStore, base: str, seconds: float, partners: Partners = nullcontext
    ) -> None:
        self._own, self._store, self._base = own, store, base
        self._seconds, self._partners = seconds, partners
        self._names: list[Any] = []
        self._rows: tuple[Row, ...] = ()

    def follow(self, hear: Callable[[], Order]) -> None:
        """`hear` waits for the next order."""
        while True:
            with busy("waiting for the learner's first process", self._seconds):
                order = hear()
            beat()
            if order["call"] == "end":
                return
            if order["call"] != "wait":
                self._obey(order)

    def _obey(self, order: Order) -> None:
        with busy(f"the call `{order['call']}`", self._seconds):
            rows = self._read(order["rows"]) if "rows" in order else ()
            with self._partners():
                self._call(order, rows)

    def _call(self, order: Order, rows: tuple[Row, ...]) -> None:
        own = self._own
        match order["call"]:
            case "update":
                own.update(rows, tuple(order["advantages"]))
            case "reference_gap":
                own.reference_gap(rows)
            case "save":
                own.save(order["step"], order["learner"])
            case "load":
                own.load(CheckpointManifest.model_validate(order["manifest"]))
            case "params" | "trained" as name:
                getattr(own, name)
            case "probe" | "params_digest" | "optimizer_digest" as name:
                getattr(own, name)()
            case unknown:
                raise RunStopped(f"the learner's first process asks for `{unknown}`: run one release in all of them")

    def _read(self, names: list[Any]) -> tuple[Row, ...]:
        """The rows of a batch. The same ones may be asked for twice in a row: before a step's record, and after it."""
        if names != self._names:
            shards = ShardCache(self._store, self._base)
            rows = tuple(shards.at((worker, seq, row), digest) for worker, seq, row, digest in names)
            self._names, self._rows = names, rows
        return self._rows
