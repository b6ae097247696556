"""Columns of Arrow lists from sequences of Python values, by way of numpy: faster than cell by cell."""

import struct
from collections.abc import Callable, Sequence
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


def struct_lists(rows: Sequence[Sequence[tuple[Any, ...]]], kind: pa.StructType) -> pa.ListArray:
    """An array of lists of structs from one sequence of tuples, with a value for each field, for each row."""
    columns = list(zip(*chain.from_iterable(rows), strict=True)) or [()] * kind.num_fields
    arrays = [pa.array(column, field.type) for column, field in zip(columns, kind, strict=True)]
    return pa.ListArray.from_arrays(_offsets(rows), pa.StructArray.from_arrays(arrays, fields=list(kind)))


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


def struct_tuples(
    column: pa.ChunkedArray, make: Callable[[list[str], list[list[Any]]], list[Any]]
) -> list[tuple[Any, ...]]:
    """A tuple for each row of a column of lists of structs; `make` turns field names and columns into its items."""
    names = [field.name for field in column.type.value_type]
    rows: list[tuple[Any, ...]] = []
    for chunk in column.chunks:
        items = make(names, [field.to_pylist() for field in chunk.flatten().flatten()])
        first, *ends = chunk.offsets.to_pylist()
        rows += [tuple(items[a - first : b - first]) for a, b in pairwise([first, *ends])]
    return rows


def objects(kind: type[T], names: Sequence[str], columns: Sequence[Sequence[Any]]) -> list[T]:
    """Instances of a plain dataclass with these fields: past its constructor, which would take half of the reading."""
    made = []
    for values in zip(*columns, strict=True):
        one = kind.__new__(kind)
        vars(one).update(zip(names, values, strict=True))
        made.append(one)
    return made
