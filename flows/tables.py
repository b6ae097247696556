"""Rows for people and for files: plain columns on standard output, Parquet or CSV where a file is named."""

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from schemas.errors import RequestError

SHOWN = 50
"""Rows of a longer table that are printed."""
_WIDEST = 60
_KINDS = (".parquet", ".csv")


def check_out(name: str | None) -> None:
    """RequestError, before any work, where rows can't be written to this file."""
    if name is not None and Path(name).suffix not in _KINDS:
        raise RequestError(f"--out {name}: rows go to a file that ends in .parquet or .csv")
    if name is not None and not Path(name).absolute().parent.is_dir():
        raise RequestError(f"--out {name}: there is no folder {Path(name).absolute().parent}")


def write_out(table: pa.Table, name: str) -> None:
    """Write the rows as Parquet or CSV, by the file's ending. RequestError where the file can't be written."""
    from pyarrow import csv, parquet

    try:
        if Path(name).suffix == ".csv":
            csv.write_csv(table, name)
        else:
            parquet.write_table(table, name)
    except OSError as error:
        raise RequestError(f"--out {name} can't be written: {error.strerror or error}") from error
    print(f"{table.num_rows} rows written to {name}", file=sys.stderr)


def show(table: pa.Table, columns: list[str] | None = None, limit: int = SHOWN) -> None:
    """Print the first rows in columns, and how many there are where there are more."""
    chosen = table.select(columns or table.column_names)
    rows = [[_cell(v) for v in row.values()] for row in chosen.slice(0, limit).to_pylist()]
    if not rows:
        return
    lines = [chosen.column_names, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    numeric = [pa.types.is_integer(f.type) or pa.types.is_floating(f.type) for f in chosen.schema]
    for line in lines:
        cells = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(line, widths, numeric, strict=True))
        print("  " + "  ".join(cells).rstrip())
    if table.num_rows > limit:
        print(f"  and {table.num_rows - limit} more of {table.num_rows}: --out FILE.parquet or FILE.csv has them all")


def _cell(value: Any) -> str:
    """A value as one line of printable text: names of tasks and the like are not ours."""
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
