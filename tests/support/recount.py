"""An audit that shares no code with the product: shards and ledger recounted with nothing but pyarrow and json.

`python tests/support/recount.py ROOT RUN` prints what it finds as one JSON object.
"""

import hashlib
import json
import struct
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa

ARRAYS = {"tokens": "i", "mask": "?", "logprobs": "f", "version_starts": "i", "versions": "i", "segment_starts": "i"}


def recount(root, run):
    """Counts over all RL stages of a run in a folder store."""
    stages = [count_stage(base) for base in sorted((Path(root) / "runs" / run).glob("rl-*")) if base.is_dir()]
    total = {k: sum(s[k] for s in stages) for k in stages[0] if isinstance(stages[0][k], int) and k != "max_staleness"}
    return total | {
        "ok": all(s["ok"] for s in stages),
        "max_staleness": max(s["max_staleness"] for s in stages),
        "dispositions": dict(sum((Counter(s["dispositions"]) for s in stages), Counter())),
        "trained": [row for s in stages for row in s["trained"]],
    }


def count_stage(base):
    """One RL stage: what the ledger says against what the shards hold."""
    records, chained = read_ledger(base)
    rows = read_rows(base)
    ends, dispositions = Counter(), Counter()
    trained, samples, checked, staleness, wrong = [], Counter(), 0, [0], 0
    rl = json.loads((base / "spec.json").read_text())["config"]["rl"]
    for metadata, lines in records:
        for line in lines:
            if line["kind"] != "trajectory":
                continue
            place = (line["worker"], line["seq"], line["row"])
            row = rows.get(place)
            ends[place] += 1
            dispositions[line["disposition"]] += 1
            same = row is not None and digest(row) == line["row_digest"] and row["id"] == line["trajectory"]
            checked += same
            wrong += not same
            if line["disposition"] == "trained":
                trained.append([metadata["step"], line["position"], line["trajectory"]])
                samples[line["group"], line["sample"]] += 1
                if row is not None:
                    behind, updates = metadata["version"] - min(row["versions"]), rl["mini_batches"] * rl["epochs"]
                    staleness.append(behind * updates + updates - 1)
                    wrong += line["staleness"] != staleness[-1]
    bound = rl["max_staleness"]
    closed = bool(records) and records[-1][0]["kind"] == "close"
    open_rows = sum(place not in ends for place in rows)
    twice = sum(n - 1 for n in samples.values())
    return {
        "ok": chained and not wrong and not twice and max(ends.values(), default=1) == 1 and max(staleness) <= bound
        and not (closed and open_rows),
        "generated": len(rows),
        "dispositions": dispositions,
        "trained_twice": twice,
        "unaccounted": open_rows if closed else 0,
        "pending": 0 if closed else open_rows,
        "checked_rows": checked,
        "max_staleness": max(staleness),
        "trained": sorted(trained),
    }  # fmt: skip


def read_ledger(base):
    """[(metadata, lines)] in order, and whether each record names the SHA-256 of the one before it."""
    records, previous, chained = [], "", True
    for number, path in enumerate(sorted((base / "ledger").glob("*.arrow"))):
        data = path.read_bytes()
        table = pa.ipc.open_file(data).read_all()
        metadata = json.loads(table.schema.metadata[b"headrace.record"])
        chained &= metadata["previous"] == previous and path.stem == f"{number:08d}"
        previous = hashlib.sha256(data).hexdigest()
        records.append((metadata, table.to_pylist()))
    return records, chained


def read_rows(base):
    """(worker, shard number, row) → row, for every readable shard of every registered worker."""
    rows = {}
    for registration in sorted((base / "workers").glob("*.json")):
        worker = json.loads(registration.read_text())["worker"]
        number = 0
        while (path := base / "trajectories" / worker / f"{number:08d}.arrow").exists():
            try:
                found = pa.ipc.open_file(path.read_bytes()).read_all().to_pylist()
            except pa.ArrowException:  # the end marker, or a shard that can't be read
                found = []
            rows |= {(worker, number, i): row for i, row in enumerate(found)}
            number += 1
    return rows


def digest(row):
    """A row's SHA-256: canonical JSON of its scalars, then each array's length and little-endian bytes."""
    scalars = {k: v for k, v in row.items() if k not in ARRAYS}
    scalars["components"] = [[c["name"], c["value"]] for c in row["components"]]
    out = hashlib.sha256(json.dumps(scalars, sort_keys=True, separators=(",", ":")).encode())
    for name, letter in ARRAYS.items():
        values = row[name]
        out.update(f"{name}:{len(values)}:".encode() + struct.pack(f"<{len(values)}{letter}", *values))
    return out.hexdigest()


if __name__ == "__main__":
    print(json.dumps(recount(sys.argv[1], sys.argv[2])))
