"""Shards: immutable Arrow IPC files of trajectories, one worker each, numbered without gaps.

A trajectory counts from the moment its shard is sealed. A learner that ends a run puts an end marker at a worker's next
number; a writer that meets it stops, so that no row can arrive after the closing record.
"""

import time
from collections.abc import Callable, Sequence

import pyarrow as pa

from schemas import checksum, keys, seeds
from schemas.errors import HeadraceError
from schemas.trajectory import COLUMNS, ShardMetadata, Trajectory, from_table, to_table
from schemas.version import SCHEMA_VERSION
from storage.objects import ObjectExists, ObjectStore

END_MARKER = b"headrace: this worker's shards end here\n"
"""What stands at the sequence number after a worker's last shard once a run has ended."""

_LARGE = 1 << 20
"""Bytes above which it pays to compress and decompress columns in several threads."""


class UnreadableShard(HeadraceError):
    """The bytes are no shard of ours; `reason` says why in a few words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WriterEnded(HeadraceError):
    """The run ended without this writer's last rows: it must stop."""


def encode_shard(rows: Sequence[Trajectory], metadata: ShardMetadata) -> bytes:
    """The rows as an Arrow IPC file, compressed with zstd."""
    table = to_table(rows, metadata)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=table.nbytes > _LARGE)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return checksum.stamp(sink.getvalue().to_pybytes())


def decode_shard(data: bytes) -> tuple[ShardMetadata, list[Trajectory]]:
    """Metadata and rows of a shard; UnreadableShard for anything else (truncated, damaged, of another version)."""
    metadata, table = decode_table(data)
    return metadata, from_table(table)


def check_own(rows: Sequence[Trajectory], run: str, worker: str, seed: int) -> None:
    """UnreadableShard unless a rollout worker made these rows in an RL stage of this run and seed.

    A row of another run or worker, or sampled by another seed than the stage has for its group, sample and attempt, is
    not the stage's. So an evaluation's episodes are no training data, wherever their shards are put.
    """
    for row in rows:
        if (row.run, row.worker) != (run, worker):
            raise UnreadableShard(f"of worker {row.worker} in run {row.run}, not of {worker} in {run}")
        if row.seed != seeds.request(seed, row.group, row.sample, row.attempt, 0):
            raise UnreadableShard(f"not of this RL stage: {row.id} was sampled by another seed than the stage's")


def decode_table(data: bytes) -> tuple[ShardMetadata, pa.Table]:
    """Metadata and rows of a shard as columns, for readers that want few of them; UnreadableShard as `decode_shard`."""
    try:
        options = pa.ipc.IpcReadOptions(use_threads=len(data) > _LARGE)
        file = pa.ipc.open_file(pa.py_buffer(data), options=options)
        metadata = ShardMetadata.decode(file.schema.metadata)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableShard(f"truncated or damaged: {error}") from error
    except (KeyError, ValueError) as error:
        raise UnreadableShard(f"no shard metadata: {error}") from error
    if metadata.schema_version != SCHEMA_VERSION:
        raise UnreadableShard(
            f"written with schema version {metadata.schema_version}, this program reads {SCHEMA_VERSION}"
        )
    if not checksum.holds(data, file.schema.metadata):
        raise UnreadableShard("truncated or damaged: its checksum does not fit")
    table = file.read_all()
    if not table.schema.equals(COLUMNS, check_metadata=False):
        raise UnreadableShard("its columns are not those of a shard")
    if any(_has_nulls(column) for column in table.columns):
        raise UnreadableShard("it has empty cells, which no writer makes")
    return metadata, table


def _has_nulls(column: pa.ChunkedArray) -> bool:
    """Whether a cell, an item of a list in it, or a field of such an item is empty."""
    items = [chunk.flatten() for chunk in column.chunks] if pa.types.is_list(column.type) else []
    fields = [field for array in items if pa.types.is_struct(array.type) for field in array.flatten()]
    return any(array.null_count for array in (column, *items, *fields))


class ShardWriter:
    """Collects finished trajectories of one worker and seals them as its next shard."""

    def __init__(
        self,
        store: ObjectStore,
        base: str,
        worker: str,
        metadata: ShardMetadata,
        *,
        seal_rows: int,
        seal_bytes: int,
        seal_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._base, self._worker, self._metadata = store, base, worker, metadata
        self._limits = (seal_rows, seal_bytes, seal_seconds)
        self._clock = clock
        self._rows: list[Trajectory] = []
        self._bytes = 0
        self._born = 0.0
        self.next_seq = 0

    @property
    def pending(self) -> int:
        """Rows that are not sealed yet."""
        return len(self._rows)

    def add(self, row: Trajectory) -> None:
        """Keep a finished trajectory for the next shard."""
        if not self._rows:
            self._born = self._clock()
        self._rows.append(row)
        self._bytes += 9 * len(row.tokens) + len(row.messages) + 500

    def due(self, *, idle: bool = False) -> bool:
        """Whether the shard should be sealed now. With nothing in flight (`idle`) it is sealed at once."""
        rows, size, seconds = self._limits
        full = len(self._rows) >= rows or self._bytes >= size
        return bool(self._rows) and (idle or full or self._clock() - self._born >= seconds)

    def seal(self) -> int:
        """Write the pending rows as one shard; returns their number. Raises WriterEnded at the end marker."""
        rows, self._rows, self._bytes = self._rows, [], 0
        if not rows:
            return 0
        key, data = keys.shard(self._base, self._worker, self.next_seq), encode_shard(rows, self._metadata)
        try:
            self._store.create(key, data)
        except ObjectExists as error:
            found = self._store.get(key).data
            if found == END_MARKER:
                raise WriterEnded(
                    f"the run ended before {len(rows)} rows of worker {self._worker} were sealed"
                ) from error
            if found != data:
                raise HeadraceError(f"{key} was written by somebody else: worker ids must be unique") from error
        self.next_seq += 1
        return len(rows)
