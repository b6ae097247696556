"""The impact of one trajectory, one task or one data file: everything that was made from it, across child runs."""

import re
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from schemas import keys
from schemas.errors import RequestError
from schemas.ledger import Disposition, Kind
from schemas.manifest import Parent, RunManifest
from storage.audit_downstream import Artifact, downstream, rl_stages, warm_up_stages
from storage.audit_lineage import checkpoint
from storage.audit_runs import read_spec, stages
from storage.audit_taken import warm_ups_that_took
from storage.catalog import Catalog, open_catalog
from storage.documents import read_document
from storage.objects import ObjectStore

_TRAJECTORY = re.compile(r"\d+-\d+-\d+")
_TRAINED = (pc.field("kind") == Kind.TRAJECTORY) & (pc.field("disposition") == Disposition.TRAINED)


@dataclass(frozen=True)
class Impact:
    """What descends from a selector."""

    run: str
    kind: str
    """`trajectory`, `task` or `data`"""
    selector: str
    trained: int
    """Trained trajectories that the selector names (of a data file: those of its tasks, in every run)."""
    ledger_heads: dict[str, str]
    """RL stage → the ledger head that the answer was made from."""
    artifacts: tuple[Artifact, ...]
    notes: tuple[str, ...]

    @property
    def channels(self) -> list[str]:
        """Promoted channels that have something of it in their history."""
        return sorted({channel for a in self.artifacts for channel in a.promoted})

    def table(self) -> pa.Table:
        """The artifacts as rows; `promoted` is joined with commas."""
        rows = [asdict(a) | {"promoted": ",".join(a.promoted)} for a in self.artifacts]
        return pa.Table.from_pylist(rows, schema=_SCHEMA)

    def to_json(self) -> dict[str, Any]:
        """What `audit impact --json` prints."""
        return asdict(self) | {"channels": self.channels}


_TEXTS = ("kind", "ref", "run", "rl", "step", "weights_sha256", "promoted", "expired")
_SCHEMA = pa.schema([(n, {"step": pa.int64(), "expired": pa.bool_()}.get(n, pa.string())) for n in _TEXTS])


def impact(store: ObjectStore, run: str, selector: str) -> Impact:
    """What descends from SELECTOR: a trajectory's id, `task:<id>`, or a data file of the run by key or SHA-256.

    Raises RequestError if the run knows no such thing.
    """
    if selector.startswith("task:"):
        return _of_rows(store, run, "task", selector.removeprefix("task:"))
    if _TRAJECTORY.fullmatch(selector):
        return _of_rows(store, run, "trajectory", selector)
    return _of_data(store, run, selector)


def _of_rows(store: ObjectStore, run: str, kind: str, value: str) -> Impact:
    column = "task_id" if kind == "task" else kind
    steps, catalogs, trained, known = {}, {}, 0, 0
    for base in stages(store, run):
        catalogs[base] = open_catalog(store, base)
        rows = catalogs[base].find(column, value)
        known += rows.num_rows
        mine = rows.filter(_TRAINED)
        trained += mine.num_rows
        if mine.num_rows:
            steps[base] = min(mine["step"].to_pylist()) + 1
    if not known:
        raise RequestError(f"the ledger of run `{run}` has no {kind} `{value}`")
    took = warm_ups_that_took(store, lambda base, one: base in catalogs and getattr(one, column) == value)
    weights = frozenset(t.weights_sha256 for t in took)
    return _made(store, run, kind, value, trained, catalogs, steps, weights)


def _of_data(store: ObjectStore, run: str, selector: str) -> Impact:
    """Files go by digest: every RL stage and warm-up in the store that read the same bytes is a source."""
    wanted = _data_file(store, run, selector)
    steps, catalogs, trained = {}, {}, 0
    for base in rl_stages(store):
        if read_spec(store, base).tasks_sha256 == wanted.sha256:
            catalogs[base] = open_catalog(store, base)
            rows = catalogs[base].rows(["step"], _TRAINED)
            trained += rows.num_rows
            if rows.num_rows:
                steps[base] = min(rows["step"].to_pylist()) + 1
    files = ("data", "log")
    used = [m for m in warm_up_stages(store) if any(p.sha256 == wanted.sha256 for p in m.inputs if p.kind in files)]
    weights = frozenset(m.weights.sha256 for m in used if m.weights)
    weights |= {t.weights_sha256 for t in warm_ups_that_took(store, lambda base, _: base in catalogs)}
    return _made(store, run, "data", wanted.ref, trained, catalogs, steps, weights)


def _made(
    store: ObjectStore,
    run: str,
    kind: str,
    selector: str,
    trained: int,
    catalogs: dict[str, Catalog],
    steps: dict[str, int],
    weights: frozenset[str] = frozenset(),
) -> Impact:
    return Impact(
        run=run,
        kind=kind,
        selector=selector,
        trained=trained,
        ledger_heads={base: catalog.head for base, catalog in catalogs.items()},
        artifacts=tuple(downstream(store, steps, weights)),
        notes=tuple(c.refused for c in catalogs.values() if c.refused),
    )


def _data_file(store: ObjectStore, run: str, selector: str) -> Parent:
    """The run's data file (its own or an ancestor's) with this key, name or digest."""
    known = _data_files(store, run)
    for parent in known:
        short = len(selector) >= 8 and parent.sha256.startswith(selector)
        if short or selector in (parent.ref, parent.ref.rsplit("/", 1)[-1]):
            return parent
    names = ", ".join(p.ref for p in known) or "none"
    raise RequestError(
        f"`{selector}` is no trajectory (GROUP-SAMPLE-ATTEMPT), no task:ID and no data file of run `{run}`: "
        f"its files are {names}"
    )


def _data_files(store: ObjectStore, run: str) -> list[Parent]:
    specs = [read_spec(store, base) for base in stages(store, run)]
    files = [Parent(kind="data", ref=s.tasks, sha256=s.tasks_sha256) for s in specs]
    manifest = read_document(store, RunManifest, keys.run_manifest(run))
    if manifest is not None:
        files += [Parent(kind="data", ref=k, sha256=_digest(k)) for k in manifest.data.values()]
    try:
        files += checkpoint(store, run).data()
    except RequestError:  # no checkpoint yet: nothing descends from an ancestor's file through this run
        return list(dict.fromkeys(files))
    return list(dict.fromkeys(files))


def _digest(key: str) -> str:
    """The SHA-256 in a data file's key."""
    return key.rsplit("/", 1)[-1].split(".")[0]
