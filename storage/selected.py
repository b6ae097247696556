"""Reading trajectories that something names by place and digest."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from schemas import keys
from schemas.errors import LogDamaged
from schemas.selection import Selected
from schemas.trajectory import ShardMetadata, Trajectory, row_digest
from storage.objects import ObjectStore, find
from storage.shards import END_MARKER, UnreadableShard, decode_shard

Place = tuple[str, int, int]
"""Worker, shard number, row."""


def read_places(
    store: ObjectStore, base: str, named: Mapping[Place, str]
) -> Iterator[tuple[Place, Trajectory, ShardMetadata]]:
    """The rows at these places, each with what holds for its shard; shard by shard, each read once.

    `named`: place → digest of the row. LogDamaged where one is gone or another than was named.
    """
    shards: dict[tuple[str, int], list[int]] = defaultdict(list)
    for worker, seq, row in named:
        shards[worker, seq].append(row)
    for (worker, seq), wanted in shards.items():
        metadata, rows = _read(store, base, worker, seq)
        for row in wanted:
            place = (worker, seq, row)
            if row >= len(rows) or row_digest(rows[row]) != named[place]:
                raise LogDamaged(f"row {row} of {keys.shard(base, worker, seq)} is not the one that was recorded")
            yield place, rows[row], metadata


def read_selected(store: ObjectStore, base: str, selected: Iterable[Selected]) -> list[Trajectory]:
    """The trajectories that a selection names, in its order. LogDamaged as `read_places`."""
    wanted = list(selected)
    found = {place: row for place, row, _ in read_places(store, base, {_place(s): s.row_digest for s in wanted})}
    return [found[_place(s)] for s in wanted]


def _place(selected: Selected) -> Place:
    return selected.worker, selected.seq, selected.row


def _read(store: ObjectStore, base: str, worker: str, seq: int) -> tuple[ShardMetadata, list[Trajectory]]:
    key = keys.shard(base, worker, seq)
    stored = find(store, key)
    if stored is None or stored.data == END_MARKER:
        raise LogDamaged(f"{key} is missing: was its run removed?")
    try:
        return decode_shard(stored.data)
    except UnreadableShard as error:
        raise LogDamaged(f"{key} is {error.reason}") from error
