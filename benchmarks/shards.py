"""Shard writing and reading against plain pyarrow.ipc on the same rows: the same schema, the same compression.

Plain writing makes a table of row dictionaries with `Table.from_pylist` and writes it; plain reading is
`read_all().to_pylist()`. Ours goes from and to `Trajectory` objects and stamps and checks a checksum besides.
"""

import io
import json
import random
from dataclasses import asdict

import pyarrow as pa
from measure import arguments, in_turn, report

from schemas.trajectory import COLUMNS, ShardMetadata, Status, Trajectory, Turn, row_digest
from storage.shards import decode_shard, decode_table, encode_shard

METADATA = ShardMetadata(tokenizer="t", chat_format="c", code="0", engine="jax")
AIM = 0.8


def made_up(rows: int, tokens: int) -> list[Trajectory]:
    """Rows of two turns, three quarters of whose tokens are sampled."""
    rng = random.Random(0)
    return [_row(rng, number, tokens) for number in range(rows)]


def _row(rng: random.Random, number: int, tokens: int) -> Trajectory:
    start, middle = tokens // 4, tokens // 2
    words = " ".join(str(rng.randrange(10**6)) for _ in range(tokens // 4))
    return Trajectory(
        id=f"{number // 8}-{number % 8}-0", run="benchmark", group=number // 8, sample=number % 8, attempt=0,
        task_id=f"task-{number // 8}", task_digest="d" * 64, seed=rng.randrange(2**60), worker="worker-0",
        tokens=tuple(rng.randrange(50_000) for _ in range(tokens)), mask=tuple(i >= start for i in range(tokens)),
        logprobs=tuple(-rng.random() if i >= start else 0.0 for i in range(tokens)),
        version_starts=(start, middle), versions=(3, 4), segment_starts=(0,),
        turns=(Turn(start, middle, 0.0, 0.5, 0.01, 0.1), Turn(middle, tokens, 1.0, 0.5, 0.01, 0.0)),
        reward=1.0, components=(("exact_match", 1.0),), status=Status.SUCCEEDED, detail="", generate_seconds=1.0,
        tool_seconds=0.1, queue_seconds=0.02, messages=json.dumps([{"role": "user", "content": words}]),
        sampling='{"temperature":1.0}',
    )  # fmt: skip


def plain_rows(rows: list[Trajectory]) -> list[dict]:
    """The rows as the dictionaries that pyarrow takes and gives."""
    return [asdict(r) | {"components": [{"name": n, "value": v} for n, v in r.components]} for r in rows]


def plain_write(rows: list[dict]) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(rows, schema=COLUMNS)
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def plain_read(data: bytes) -> list[dict]:
    return pa.ipc.open_file(io.BytesIO(data)).read_all().to_pylist()


def compare(rows: list[Trajectory], tokens: int, rounds: int) -> list[dict]:
    """One line for writing, reading and what has no plain counterpart."""
    dictionaries, data = plain_rows(rows), encode_shard(rows, METADATA)
    plain = plain_write(dictionaries)
    taken = in_turn(
        {
            "write": lambda: encode_shard(rows, METADATA),
            "plain write": lambda: plain_write(dictionaries),
            "read": lambda: decode_shard(data),
            "plain read": lambda: plain_read(plain),
            "read columns": lambda: decode_table(data),
            "digest": lambda: [row_digest(r) for r in rows],
        },
        rounds,
    )
    lines = []
    for what in ("write", "read", "read columns", "digest"):
        ours, other = taken[what], taken.get(f"plain {what}")
        line = {"what": what, "rows": len(rows), "tokens": tokens, "rows_per_second": len(rows) / ours["wall"]}
        line |= {"wall_seconds": ours["wall"], "cpu_seconds": ours["cpu"]}
        if other:
            line |= {"plain_wall": other["wall"], "plain_cpu": other["cpu"]}
            line |= {"ratio_wall": other["wall"] / ours["wall"], "ratio_cpu": other["cpu"] / ours["cpu"]}
        lines.append(line)
    return lines


def main() -> None:
    args = arguments(__doc__ or "", rows=128, rounds=9)
    lines = [line for tokens in (40, 512, 4096) for line in compare(made_up(args.rows, tokens), tokens, args.rounds)]
    ratios = {what: min(x["ratio_cpu"] for x in lines if x["what"] == what) for what in ("write", "read")}
    meets = {f"shard {what} rate at least {AIM} of plain pyarrow.ipc": r >= AIM for what, r in ratios.items()}
    report(lines, meets, as_json=args.json)


if __name__ == "__main__":
    main()
