"""Tailing the log: each worker's next shard is asked for by number; nothing is ever listed.

A shard that can't be read gets its own ledger entry and the tail goes on. A missing shard below a worker's announced
number is waited for: writers seal in order.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from schemas import keys
from schemas.manifest import RLSpec, WorkerState
from schemas.trajectory import row_digest
from storage.control import read_worker
from storage.objects import ObjectExists, ObjectStore, find
from storage.shards import END_MARKER, UnreadableShard, check_own, decode_shard
from trainer.assembler import Row
from trainer.progress import Progress


@dataclass
class Worker:
    """A worker's log as far as it was read."""

    number: int
    id: str
    next_seq: int
    state: WorkerState
    generation: int
    ended: bool = False
    """The end marker was met."""
    unread: dict[int, set[int]] = field(default_factory=dict)
    """Shard number → rows without a disposition; a shard leaves when it has none."""


class ShardTail:
    """Reads new rows of all workers of one RL stage. A shard that is not the stage's own counts as unreadable."""

    def __init__(self, store: ObjectStore, base: str, progress: Progress, spec: RLSpec) -> None:
        self._store, self._base, self._progress, self._spec = store, base, progress, spec
        self.workers: dict[str, Worker] = {}
        self.unreadable: list[tuple[str, int, str]] = []
        """Shards found unreadable since the last record: worker, number, reason."""

    def poll(self, deliver: Callable[[Row], None]) -> int:
        """Hand every new row to `deliver`; returns how many there were."""
        self.discover()
        return sum(self._drain(worker, deliver) for worker in self.workers.values())

    def discover(self) -> None:
        """Find workers that have registered since, by the next free number."""
        while (found := read_worker(self._store, self._base, len(self.workers))) is not None:
            state, generation = found
            start = self._progress.cursor.get(state.worker, 0)
            self.workers[state.worker] = Worker(state.number, state.worker, start, state, generation)

    def refresh(self) -> Iterable[Worker]:
        """The workers with their newest heartbeats."""
        for worker in self.workers.values():
            if worker.state.state == "left":
                continue
            found = read_worker(self._store, self._base, worker.number)
            if found is not None:
                worker.state, worker.generation = found
        return self.workers.values()

    def _drain(self, worker: Worker, deliver: Callable[[Row], None]) -> int:
        count = 0
        while not worker.ended:
            stored = find(self._store, keys.shard(self._base, worker.id, worker.next_seq))
            if stored is None:
                break
            if stored.data == END_MARKER:
                worker.ended = True
                break
            count += self._read(worker, stored.data, deliver)
            worker.next_seq += 1
        return count

    def _read(self, worker: Worker, data: bytes, deliver: Callable[[Row], None]) -> int:
        seq = worker.next_seq
        try:
            _, rows = decode_shard(data)
            check_own(rows, self._spec.run, worker.id, self._spec.seed)
        except UnreadableShard as error:
            if (worker.id, seq) not in self._progress.unreadable:
                self.unreadable.append((worker.id, seq, error.reason))
            return 0
        new = [(i, t) for i, t in enumerate(rows) if (worker.id, seq, i) not in self._progress.recorded]
        if new:
            worker.unread[seq] = {i for i, _ in new}
        for i, trajectory in new:
            deliver(Row((worker.id, seq, i), trajectory, row_digest(trajectory)))
        return len(new)

    def take_unreadable(self) -> list[tuple[str, int, str]]:
        taken, self.unreadable = self.unreadable, []
        return taken

    def recorded(self, places: Iterable[tuple[str, int, int]]) -> None:
        """Note rows that the ledger now has."""
        for worker_id, seq, row in places:
            rows = self.workers[worker_id].unread.get(seq)
            if rows is not None:
                rows.discard(row)
                if not rows:
                    del self.workers[worker_id].unread[seq]

    def cursor(self) -> dict[str, int]:
        """Per worker the lowest shard that holds a row without a disposition: where recovery rereads from."""
        pending = {(w, seq) for w, seq, _ in self.unreadable}
        lowest = {}
        for worker in self.workers.values():
            open_shards = [*worker.unread, *(s for w, s in pending if w == worker.id)]
            lowest[worker.id] = min(open_shards, default=worker.next_seq)
        return lowest

    def mark_ends(self) -> bool:
        """Put the end marker at each worker's next number; False if one of them was faster with another shard."""
        for worker in self.workers.values():
            if worker.ended:
                continue
            try:
                self._store.create(keys.shard(self._base, worker.id, worker.next_seq), END_MARKER)
            except ObjectExists:
                return False
            worker.ended = True
        return True
