"""`headrace audit`: recount what the store promises; a violation is exit code 3.

Tables for people, `--json` for programs, `--out FILE` for the rows.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from flows.tables import check_out, show, write_out
from schemas.digest import sha256
from schemas.errors import AuditViolation
from storage import audit, audit_bias, audit_impact, audit_life, audit_lineage
from storage.audit_runs import stages
from storage.catalog_copy import rebuild
from storage.objects import ObjectStore
from storage.open import open_store
from tasks.checkpoints import split
from tasks.request import root_url


def main(args: argparse.Namespace) -> None:
    check_out(getattr(args, "out", None))
    _KINDS[args.kind](open_store(root_url(args.root), write=args.kind == "catalog"), args)


def _verify(store: ObjectStore, args: argparse.Namespace) -> None:
    found = audit.verify(store, args.run)
    plain = found.to_json()
    if args.out:
        write_out(pa.table({"violation": pa.array(found.violations, pa.string())}), args.out)
    if args.json:
        print(json.dumps(plain, indent=2))
    if not found.ok:
        raise AuditViolation(found.sentence())
    if not args.json:
        ends = ", ".join(f"{n} {k}" for k, n in plain["dispositions"].items()) or "none"
        print(f"{found.sentence()}: {plain['generated']} trajectories ({ends}), {plain['pending']} pending")
        print(f"largest staleness {plain['max_staleness']}; {plain['checked_rows']} rows checked")
        if plain["expired"]:
            print(f"{plain['expired']} of {found.total('checkpoints')} checkpoints have expired")


def _checkpoint(store: ObjectStore, args: argparse.Namespace) -> None:
    found = audit_lineage.checkpoint(store, *split(args.checkpoint), ledger_only=args.ledger)
    _tell(found.notes)
    if args.out:
        write_out(found.table(), args.out)
    if args.json:
        print(json.dumps(found.to_json(), indent=2))
        return
    rows = found.table()
    print(f"{found.run}@{found.step}: weights {found.weights_sha256[:12]}, trained on {rows.num_rows} trajectories")
    for segment in found.segments:
        print(f"  {segment.run}@{segment.step}: {segment.rows.num_rows}, ledger head {segment.ledger_head[:12]}")
    show(rows, ["run", "step", "position", "trajectory", "task_id", "worker", "staleness", "advantage"])
    for stage in found.warm_ups:
        print(f"  warmed up by {stage.stage}{stage.source}")
    for parent in [*found.data(), *found.outside]:
        print(f"  {parent.kind} {parent.ref}")


def _trajectory(store: ObjectStore, args: argparse.Namespace) -> None:
    found = audit_life.trajectory(store, args.run, args.trajectory, ledger_only=args.ledger)
    plain = found.to_json()
    _tell(found.notes)
    if args.out:
        rows = [d | {"promoted": ",".join(d["promoted"])} for d in plain["descendants"]]
        write_out(pa.Table.from_pylist(rows, schema=_texts("checkpoint", "rl", "weights_sha256", "promoted")), args.out)
    if args.json:
        print(json.dumps(plain, indent=2))
        return
    for name, value in plain.items():
        if name not in ("messages", "descendants", "notes"):
            print(f"{name:<12} {value!r}" if isinstance(value, str) else f"{name:<12} {value}")
    for child in plain["descendants"]:
        print(
            f"descendant   {child['checkpoint']}"
            + (f" promoted to {', '.join(child['promoted'])}" if child["promoted"] else "")
        )


def _impact(store: ObjectStore, args: argparse.Namespace) -> None:
    found = audit_impact.impact(store, args.run, _selector(args.selector))
    _tell(found.notes)
    if args.out:
        write_out(found.table(), args.out)
    if args.json:
        print(json.dumps(found.to_json(), indent=2))
        return
    count = len(found.artifacts)
    print(f"{found.kind} {found.selector}: {found.trained} trajectories trained, {count} artifacts descend")
    show(found.table(), ["kind", "ref", "step", "weights_sha256", "promoted", "expired"])
    print(f"  promoted channels: {', '.join(found.channels) or 'none'}")


def _selector(text: str) -> str:
    """A data file that lies here goes by its digest."""
    path = Path(text)
    return sha256(path.read_bytes()) if not text.startswith("task:") and path.is_file() else text


def _bias(store: ObjectStore, args: argparse.Namespace) -> None:
    found = audit_bias.bias(store, args.run)
    _tell(found.notes)
    if args.out:
        write_out(found.table(), args.out)
    if args.json:
        print(json.dumps(found.to_json(), indent=2))
        return
    print(f"run {found.run}: {found.generated} trajectories generated, {found.trained} of them trained")
    show(pa.Table.from_pylist(found.to_json()["comparisons"]))
    print("  p: the chance of such a difference between the trained and the other rows if there were none")
    show(found.table())


def _replay(store: ObjectStore, args: argparse.Namespace) -> None:
    from tasks.replay import replay

    def progress(event: dict[str, Any]) -> None:
        if sys.stderr.isatty() and event["event"] == "replayed":
            print(f"\rreplayed step {event['step']} of {event['steps']}", end="", file=sys.stderr, flush=True)

    folder = Path(args.weights).expanduser() if args.weights else None
    found = replay(store, *split(args.checkpoint), from_start=args.from_start, on_event=progress, weights=folder)
    if args.json:
        print(json.dumps(found, indent=2))
        return
    how = "to the bit" if found["bitwise"] else f"within {found['gap']:.1e} of its probe (bound {found['tolerance']:g})"
    where = "" if found["same_numerics"] else ", in another numerics environment than it was computed in"
    print(f"{found['checkpoint']} replayed {how}{where}: from step {found['start']}, {found['rows']} trajectories")
    if folder:
        print(f"its weights are in {folder}")


def _catalog(store: ObjectStore, args: argparse.Namespace) -> None:
    parts = {base: rebuild(store, base) for base in stages(store, args.run)}
    plain = [
        {"rl": base.rsplit("/rl-", 1)[1], "records": p.end, "rows": p.table.num_rows, "ledger_head": p.head}
        for base, p in parts.items()
    ]
    if args.json:
        print(json.dumps({"run": args.run, "stages": plain}, indent=2))
        return
    for stage in plain:
        head = stage["ledger_head"][:12]
        print(f"{args.run} rl-{stage['rl']}: {stage['records']} records, {stage['rows']} rows, ledger head {head}")


def _tell(notes: Iterable[str]) -> None:
    for note in dict.fromkeys(notes):
        print(f"headrace: {note}", file=sys.stderr)


def _texts(*names: str) -> pa.Schema:
    return pa.schema([(name, pa.string()) for name in names])


_KINDS: dict[str, Callable[[ObjectStore, argparse.Namespace], None]] = {
    "verify": _verify,
    "checkpoint": _checkpoint,
    "trajectory": _trajectory,
    "impact": _impact,
    "bias": _bias,
    "replay": _replay,
    "catalog": _catalog,
}
