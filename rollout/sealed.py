"""What other workers have sealed: which samples of a group need not be played again.

A shard that can't be read settles nothing: its samples count as missing.
"""

from dataclasses import dataclass, field

from schemas import keys
from schemas.trajectory import Trajectory
from storage.objects import ObjectStore, find
from storage.shards import END_MARKER, UnreadableShard, decode_shard


@dataclass
class _Log:
    """A worker's shards as far as they were read."""

    next_seq: int = 0
    settled: dict[int, set[int]] = field(default_factory=dict)
    """Group → samples with a successful row, or a failed last attempt."""


class SealedSamples:
    """Reads the shards of given workers, each shard once."""

    def __init__(self, store: ObjectStore, base: str, attempts: int) -> None:
        self._store, self._base, self._attempts = store, base, attempts
        self._logs: dict[str, _Log] = {}

    def settled(self, group: int, owners: tuple[str, ...]) -> set[int]:
        """The samples of a group that these workers have settled."""
        return set().union(*(self._read(owner).settled.get(group, set()) for owner in owners))

    def _read(self, worker: str) -> _Log:
        log = self._logs.setdefault(worker, _Log())
        while (stored := find(self._store, keys.shard(self._base, worker, log.next_seq))) is not None:
            if stored.data == END_MARKER:
                break
            for row in self._rows(worker, stored.data):
                if not row.failed or row.attempt % self._attempts == self._attempts - 1:
                    log.settled.setdefault(row.group, set()).add(row.sample)
            log.next_seq += 1
        return log

    def _rows(self, worker: str, data: bytes) -> list[Trajectory]:
        try:
            return [row for row in decode_shard(data)[1] if row.worker == worker]
        except UnreadableShard:
            return []
