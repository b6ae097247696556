"""What was generated against what was trained: lengths, rewards, difficulty, tasks and statuses.

Training takes a part of what is generated (stale, failed and zero-advantage groups fall out), and that part may differ.
Each test asks whether the trained rows and the others could have come from one distribution.
"""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import RequestError
from schemas.ledger import Disposition, Kind
from schemas.trajectory import FAILED
from storage.audit_runs import stages
from storage.catalog import open_catalog
from storage.objects import ObjectStore
from storage.statistics import categories, two_samples

_COLUMNS = ["disposition", "task_id", "status", "reward", "length", "sampled"]


@dataclass(frozen=True)
class Comparison:
    """One quantity or category."""

    name: str
    test: str
    """`ks` (two-sample Kolmogorov-Smirnov) or `chi2`, of the trained rows against the others."""
    generated_mean: float | None
    trained_mean: float | None
    statistic: float
    p: float


@dataclass(frozen=True)
class Share:
    """One value of a category."""

    name: str
    value: str
    generated: int
    trained: int


@dataclass(frozen=True)
class Bias:
    """Generated against trained in a run: rows that reached their end by the heads given."""

    run: str
    generated: int
    trained: int
    unreadable: int
    """Rows whose shard can't be read: in no comparison."""
    comparisons: tuple[Comparison, ...]
    shares: tuple[Share, ...]
    ledger_heads: dict[str, str]
    notes: tuple[str, ...]

    def table(self) -> pa.Table:
        """The shares as rows."""
        return pa.Table.from_pylist([asdict(s) for s in self.shares], schema=_SHARES)

    def to_json(self) -> dict[str, Any]:
        """What `audit bias --json` prints."""
        return asdict(self)


_SHARES = pa.schema([("name", pa.string()), ("value", pa.string()), ("generated", pa.int64()), ("trained", pa.int64())])


def bias(store: ObjectStore, run: str) -> Bias:
    """Compare what a run generated with what it trained. RequestError if nothing has reached its end yet."""
    catalogs = {base: open_catalog(store, base, facts=True) for base in stages(store, run)}
    ended = pa.concat_tables([c.rows(_COLUMNS, pc.field("kind") == Kind.TRAJECTORY) for c in catalogs.values()])
    if not ended.num_rows:
        raise RequestError(f"no trajectory of run `{run}` has reached its end yet: there is nothing to compare")
    rows = ended.filter(pc.field("status").is_valid())
    trained = np.array([end == Disposition.TRAINED for end in rows["disposition"].to_pylist()], dtype=bool)
    shares = [share for name, column in _CATEGORIES.items() for share in _shares(name, rows[column], trained)]
    return Bias(
        run=run,
        generated=ended.num_rows,
        trained=int(trained.sum()),
        unreadable=ended.num_rows - rows.num_rows,
        comparisons=(
            *(_quantity(name, values, trained) for name, values in _quantities(rows).items()),
            *(_category(name, shares) for name in _CATEGORIES),
        ),
        shares=tuple(shares),
        ledger_heads={base: c.head for base, c in catalogs.items()},
        notes=tuple(c.refused for c in catalogs.values() if c.refused),
    )


_CATEGORIES = {"task": "task_id", "status": "status"}


def _quantities(rows: pa.Table) -> dict[str, np.ndarray]:
    """Name → a number for each row."""
    return {
        "length": rows["length"].to_numpy(),
        "sampled tokens": rows["sampled"].to_numpy(),
        "reward": rows["reward"].to_numpy(),
        "difficulty": _difficulty(rows),
    }


def _difficulty(rows: pa.Table) -> np.ndarray:
    """One minus the mean reward that the row's task had in the run, over attempts that did not fail; 1 without any."""
    sound = ~pc.field("status").isin([str(s) for s in FAILED])
    means = rows.filter(sound).group_by("task_id").aggregate([("reward", "mean")])
    easy = dict(zip(means["task_id"].to_pylist(), means["reward_mean"].to_pylist(), strict=True))
    return np.array([1.0 - easy.get(task, 0.0) for task in rows["task_id"].to_pylist()])


def _quantity(name: str, values: np.ndarray, trained: np.ndarray) -> Comparison:
    statistic, p = two_samples(values[trained], values[~trained])
    mean = float(values[trained].mean()) if trained.any() else None
    return Comparison(name, "ks", float(values.mean()) if len(values) else None, mean, statistic, p)


def _shares(name: str, column: pa.ChunkedArray, trained: np.ndarray) -> list[Share]:
    generated, used = Counter(column.to_pylist()), Counter(column.filter(pa.array(trained)).to_pylist())
    return [Share(name, str(value), count, used[value]) for value, count in sorted(generated.items())]


def _category(name: str, shares: list[Share]) -> Comparison:
    mine = [s for s in shares if s.name == name]
    statistic, p = categories({s.value: s.trained for s in mine}, {s.value: s.generated - s.trained for s in mine})
    return Comparison(name, "chi2", None, None, statistic, p)
