"""The ledger at length: what an audit of a long run takes, what a step pays for its record, what tailing asks for.

A run of `--steps` steps with `--rows` trajectories each is laid out in a folder store: every ledger record through the
product's own encoder, shards with few tokens. The catalog is built by the product, then asked. What a step pays is
measured on records of the quickstart's size (16 groups of 8) in a folder store, against a quickstart step's seconds.
"""

import hashlib
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from measure import arguments, in_turn, report, seconds

from schemas import checksum, keys, seeds
from schemas.ledger import Disposition, Kind, LedgerRow, Record, RecordMetadata, encode, record_digest
from schemas.manifest import CheckpointManifest, Numerics, RLSpec, WeightsRef
from schemas.trajectory import COLUMNS, ShardMetadata, Status, Trajectory, Turn, row_digest, to_table
from storage import audit_life, audit_lineage, control, ledger
from storage.catalog import open_catalog
from storage.catalog_copy import compact, rebuild
from storage.folder import FolderStore
from storage.memory import MemoryStore
from storage.objects import ObjectStore
from storage.shards import ShardWriter
from trainer.progress import Progress
from trainer.tail import ShardTail

BASE, WORKERS = "runs/long/rl-0123", 16
STEP_SECONDS = 0.3
"""Processor seconds of a learner step of the calculator example on two cores."""
NUMERICS = Numerics(jax="", jaxlib="", xla_flags="", device_kind="cpu", device_count=1, cores=1)
METADATA = ShardMetadata(tokenizer="t", chat_format="c", code="0", engine="jax")
WEIGHTS = WeightsRef(prefix="initial", sha256="0" * 64)
CONFIG: dict[str, Any] = {}
SPEC = RLSpec(
    run="long", key="0123", config=CONFIG, folder="", seed=0, initial=WEIGHTS, tasks="data/x.jsonl", tasks_sha256="x",
    environment_sha256="",
)  # fmt: skip


def trajectory(group: int, sample: int, worker: str = "w00") -> Trajectory:
    """A row of eight tokens."""
    return Trajectory(
        id=f"{group}-{sample}-0", run="long", group=group, sample=sample, attempt=0, task_id=f"task-{group % 1000}",
        task_digest="d", seed=seeds.request(0, group, sample, 0, 0), worker=worker, tokens=(1,) * 8,
        mask=(False,) * 4 + (True,) * 4, logprobs=(-0.5,) * 8,
        version_starts=(4,), versions=(0,), segment_starts=(0,), turns=(Turn(4, 8, 1.0, 0.1, 0.0, 0.0),), reward=1.0,
        components=(), status=Status.SUCCEEDED, detail="", generate_seconds=0.1, tool_seconds=0.0, queue_seconds=0.0,
        messages="[]", sampling="{}",
    )  # fmt: skip


def record(step: int, rows: int, previous: str, digests: list[str] | None = None) -> Record:
    """A step's record: trained rows of groups of eight, and the groups' ends."""
    first, size = step * rows, 8
    metadata = RecordMetadata(step, "step", step, 1, "L", "c", "{}", previous, WEIGHTS.sha256)
    trained = [
        LedgerRow(
            Kind.TRAJECTORY, group=(first + i) // size, sample=(first + i) % size, attempt=0,
            trajectory=f"{(first + i) // size}-{(first + i) % size}-0", task_id=f"task-{(first + i) // size % 1000}",
            worker=f"w{step % WORKERS:02d}", seq=step // WORKERS, row=i,
            row_digest=digests[i] if digests else hashlib.sha256(f"{first + i}".encode()).hexdigest(),
            disposition=Disposition.TRAINED, position=i, staleness=0, in_flight=0, advantage=0.5, weight=1.0,
        )
        for i in range(rows)
    ]  # fmt: skip
    ends = [LedgerRow(Kind.GROUP, group=g, disposition=Disposition.TRAINED) for g in {t.group for t in trained}]
    return Record(metadata, (*trained, *ends))


class Template:
    """One shard's columns, in which only the identities change: the layout below writes many."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._table = to_table([trajectory(0, 0)] * rows, METADATA)

    def encode(self, step: int) -> bytes:
        first, size, table = step * self._rows, 8, self._table
        groups = [(first + i) // size for i in range(self._rows)]
        samples = [(first + i) % size for i in range(self._rows)]
        changed = {
            "id": [f"{g}-{s}-0" for g, s in zip(groups, samples, strict=True)],
            "group": groups,
            "sample": samples,
            "seed": [seeds.request(0, g, s, 0, 0) for g, s in zip(groups, samples, strict=True)],
            "task_id": [f"task-{g % 1000}" for g in groups],
            "worker": [f"w{step % WORKERS:02d}"] * self._rows,
        }
        for name, values in changed.items():
            place = COLUMNS.get_field_index(name)
            table = table.set_column(place, COLUMNS.field(place), pa.array(values, COLUMNS.field(place).type))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
        return checksum.stamp(sink.getvalue().to_pybytes())


def lay_out(store: ObjectStore, steps: int, rows: int, every: int) -> None:
    """A run's spec, shards, ledger and checkpoint manifests, and the catalog parts that a learner leaves."""
    store.create(keys.spec(BASE), SPEC.to_bytes())
    template, head = Template(rows), ""
    asked = [row_digest(t) for t in _rows_of(steps // 2, rows)]
    for step in range(steps):
        store.create(keys.shard(BASE, f"w{step % WORKERS:02d}", step // WORKERS), template.encode(step))
        data = encode(record(step, rows, head, asked if step == steps // 2 else None))
        store.create(keys.ledger(BASE, step), data)
        head = record_digest(data)
        if (step + 1) % every == 0:
            store.create(keys.checkpoint_manifest(BASE, step + 1), checkpoint(step + 1, head).to_bytes())
            compact(store, BASE)


def _rows_of(step: int, rows: int) -> list[Trajectory]:
    first = step * rows
    return [trajectory((first + i) // 8, (first + i) % 8, f"w{step % WORKERS:02d}") for i in range(rows)]


def checkpoint(step: int, head: str) -> CheckpointManifest:
    return CheckpointManifest(
        step=step, version=step, learner="L", prefix="p", files={}, params_sha256="", optimizer_sha256="", prng="",
        cursor={}, workers=WORKERS, low=0, limit=0, ended=(), admitted={}, recorded=(), unreadable=(), empty_steps=0,
        dispositions={}, ledger_index=step, ledger_head=head, parent=None, initial=WEIGHTS,
        policy=WeightsRef(prefix="p", sha256=hashlib.sha256(str(step).encode()).hexdigest()), config_digest="c",
        code="0", numerics=NUMERICS,
    )  # fmt: skip


def audits(steps: int, rows: int, every: int, rounds: int) -> tuple[list[dict], dict[str, bool]]:
    """Build the catalog of a long run and ask it."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        store = FolderStore(Path(folder))
        started = time.perf_counter()
        lay_out(store, steps, rows, every)
        lines = [{"what": "laying the run out", "wall_seconds": time.perf_counter() - started}]
        asked = f"{steps // 2 * rows // 8}-{steps // 2 * rows % 8}-0"
        meets: dict[str, bool] = {}
        for parts in ("the learner's parts", "one part"):
            if parts == "one part":
                wall, cpu = seconds(lambda: rebuild(store, BASE))
                lines.append({"what": "audit catalog", "wall_seconds": wall, "cpu_seconds": cpu})
            found = audit_lineage.checkpoint(store, "long")
            assert (found.segments[0].rows.num_rows, found.segments[0].from_catalog) == (steps * rows, steps)
            assert audit_life.trajectory(store, "long", asked).step == steps // 2
            stored = open_catalog(store, BASE).parts
            for what, taken in ask(store, asked, rounds).items():
                line = {"what": f"{what}, {parts}", "wall_seconds": taken["wall"], "cpu_seconds": taken["cpu"]}
                lines.append(
                    line | {"rows": steps * rows, "parts": len(stored), "bytes": sum(len(p.data) for p in stored)}
                )
                meets[f"{what} of {steps * rows:,} rows under 2 s from {parts}"] = taken["wall"] < 2.0
        return lines, meets


def ask(store: ObjectStore, trajectory_id: str, rounds: int) -> dict[str, dict[str, float]]:
    """What `audit checkpoint` and `audit trajectory` take."""
    return in_turn(
        {
            "audit checkpoint": lambda: audit_lineage.checkpoint(store, "long"),
            "audit trajectory": lambda: audit_life.trajectory(store, "long", trajectory_id),
        },
        rounds,
    )


def step_cost(rounds: int) -> tuple[list[dict], dict[str, bool]]:
    """Appending a record of 128 trajectories and copying ten such steps into the catalog."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        store, index, head = FolderStore(Path(folder)), 0, ""
        writing: list[tuple[float, float]] = []
        for index in range(rounds * 10):
            made = record(index, 128, head)
            writing.append(seconds(lambda i=index, m=made: ledger.append(store, BASE, i, m)))
            head = record_digest(store.get(keys.ledger(BASE, index)).data)
        copying = seconds(lambda: compact(store, BASE))
    wall, cpu = (sorted(t[i] for t in writing)[len(writing) // 2] for i in (0, 1))
    copy = copying[1] / (rounds * 10)
    lines = [
        {"what": "ledger append", "wall_seconds": wall, "cpu_seconds": cpu, "rows": 128},
        {"what": "copying a step into the catalog", "wall_seconds": copying[0] / (rounds * 10), "cpu_seconds": copy},
    ]
    return lines, {f"a ledger append under 2 % of a step of {STEP_SECONDS} s": cpu < 0.02 * STEP_SECONDS}


class Counting(MemoryStore):
    """Counts calls by kind."""

    def __init__(self) -> None:
        super().__init__("counting")
        self.calls: Counter[str] = Counter()

    def get(self, key: str) -> Any:
        self.calls["get"] += 1
        return super().get(key)

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> list[str]:
        self.calls["list"] += 1
        return super().list(prefix, after, limit)


def tailing(polls: int) -> tuple[list[dict], dict[str, bool]]:
    """Store calls of a learner that tails sixteen workers: after many shards, polls with few new ones."""
    store, writers = Counting(), []
    for number in range(WORKERS):
        name = f"w{number:02d}"
        control.register_worker(store, BASE, worker=name, host="h", pid=1)
        limits = {"seal_rows": 99, "seal_bytes": 1 << 30, "seal_seconds": 9.0}
        writers.append(ShardWriter(store, BASE, name, METADATA, **limits))
    tail = ShardTail(store, BASE, Progress(), SPEC)
    gets, news, group = [], [], 0
    for poll in range(polls):
        new = writers if poll == 0 else writers[: poll % 3]
        for writer in new:
            group += 1
            writer.add(trajectory(group, 0))
            writer.seal()
        store.calls.clear()
        tail.poll(lambda row: None)
        gets.append(store.calls["get"])
        news.append(len(new))
        assert not store.calls["list"]
    beyond = np.array(gets[1:]) - np.array(news[1:])
    lines = [{"what": "store calls of a poll of 16 workers beyond its new shards", "calls": int(beyond.max())}]
    constant = bool((beyond == beyond[0]).all()) and not store.calls["list"]
    return lines, {"tailing lists nothing and asks for each new shard once, plus a constant": constant}


def main() -> None:
    args = arguments(__doc__ or "", steps=10_000, rows=100, every=100, rounds=5)
    lines: list[dict] = []
    meets: dict[str, bool] = {}
    for found, met in (step_cost(args.rounds), tailing(50), audits(args.steps, args.rows, args.every, args.rounds)):
        lines += found
        meets |= met
    report(lines, meets, as_json=args.json)


if __name__ == "__main__":
    main()
