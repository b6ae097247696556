"""Columns of Arrow lists from sequences of Python values, by way of numpy: faster than cell by cell."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

T = TypeVar("T")


def list_array(rows: Sequence[Sequence[Any]], kind: pa.DataType) -> pa.ListArray:
    """An array of lists of int32, float32 or bool from one sequence for each row."""
    offsets = _offsets(rows)
    if pa.types.is_boolean(kind):
        values = np.frombuffer(b"".join(map(bytes, rows)), dtype=np.bool_)
    else:
        values = np.fromiter(chain.from_iterable(rows), kind.to_pandas_dtype(), offsets[-1])
    return pa.ListArray.from_arrays(offsets, pa.array(values, kind))


def _offsets(rows: Sequence[Sequence[Any]]) -> np.ndarray:
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    return np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)])


def number_tuples(column: pa.ChunkedArray) -> list[tuple[Any, ...]]:
    """A tuple of Python values for each row of a column of lists of int32, float32 or bool without empty cells."""
    code = "?" if pa.types.is_boolean(column.type.value_type) else "f" if _is_float(column) else "i"
    size, rows = struct.calcsize(f"<{code}"), []
    for chunk in column.chunks:
        values = chunk.flatten().to_numpy(zero_copy_only=False).tobytes()
        first, *ends = chunk.offsets.to_pylist()
        rows += [struct.unpack_from(f"<{b - a}{code}", values, (a - first) * size) for a, b in pairwise([first, *ends])]
    return rows


def _is_float(column: pa.ChunkedArray) -> bool:
    return pa.types.is_floating(column.type.value_type)


def made(kind: type[T], fields: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> T:
    """An instance of a plain dataclass with these fields: past its constructor, which is slow when frozen."""
    one = object.__new__(kind)
    one.__dict__.update(fields)
    return one
