"""Shards as bytes: what goes in comes out, in the columns that plain pyarrow reads."""

import dataclasses

import pyarrow as pa
import pytest
from support.protocol import METADATA, trajectory

from schemas import checksum
from schemas.trajectory import COLUMNS, Turn, to_table
from storage.shards import UnreadableShard, decode_shard, decode_table, encode_shard

EMPTY = trajectory(
    0, 0, tokens=(), mask=(), logprobs=(), versions=(), version_starts=(), segment_starts=(), turns=(), components=()
)
FULL = trajectory(
    1, 1, turns=(Turn(0, 2, 0.5, 0.1, 0.2, 0.3), Turn(2, 4, 1.0, 0.0, 0.0, 0.0)), components=(("a", 0.5), ("b", -1.0))
)


@pytest.mark.parametrize("rows", [[], [EMPTY], [FULL], [EMPTY, FULL, EMPTY]], ids=["none", "empty", "full", "mixed"])
def test_rows_come_back(rows):
    assert decode_shard(encode_shard(rows, METADATA)) == (METADATA, rows)


def test_plain_pyarrow_reads_the_same():
    (plain,) = pa.ipc.open_file(encode_shard([FULL], METADATA)).read_all().to_pylist()
    components = [{"name": n, "value": v} for n, v in FULL.components]
    assert plain == dataclasses.asdict(FULL) | {
        name: list(getattr(FULL, name)) for name in COLUMNS.names if isinstance(getattr(FULL, name), tuple)
    } | {"turns": [dataclasses.asdict(t) for t in FULL.turns], "components": components}


def test_large_shards_take_the_threaded_way():
    long = dataclasses.replace(FULL, tokens=tuple(range(10**6)), mask=(True,) * 10**6, logprobs=(-0.5,) * 10**6)
    data = encode_shard([long], METADATA)
    assert len(data) > 1 << 20
    assert decode_shard(data)[1] == [long]


@pytest.mark.parametrize("column", ["tokens", "turns", "reward"])
def test_empty_cells_are_no_shard(column):
    table = to_table([FULL], METADATA)
    place, kind = COLUMNS.get_field_index(column), COLUMNS.field(column).type
    hollow = {"tokens": [[1, None]], "turns": [[{"start": None}]], "reward": [None]}[column]
    table = table.set_column(place, COLUMNS.field(column), pa.array(hollow, kind))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(UnreadableShard, match="empty cells"):
        decode_table(checksum.stamp(sink.getvalue().to_pybytes()))
