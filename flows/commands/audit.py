"""`headrace audit`: recount what the store promises; a violation is exit code 3."""

import argparse
import json

from schemas.errors import AuditViolation
from storage import audit, audit_life, audit_lineage
from storage.objects import ObjectStore
from storage.open import open_store
from tasks.checkpoints import split
from tasks.request import root_url


def main(args: argparse.Namespace) -> None:
    store = open_store(root_url(args.root))
    {"verify": _verify, "checkpoint": _checkpoint, "trajectory": _trajectory}[args.kind](store, args)


def _verify(store: ObjectStore, args: argparse.Namespace) -> None:
    found = audit.verify(store, args.run)
    plain = found.to_json()
    if args.json:
        print(json.dumps(plain, indent=2))
    if not found.ok:
        raise AuditViolation(found.sentence())
    if not args.json:
        ends = ", ".join(f"{n} {k}" for k, n in plain["dispositions"].items()) or "none"
        print(f"{found.sentence()}: {plain['generated']} trajectories ({ends}), {plain['pending']} pending")
        print(f"largest staleness {plain['max_staleness']}; {plain['checked_rows']} rows checked")


def _checkpoint(store: ObjectStore, args: argparse.Namespace) -> None:
    plain = audit_lineage.checkpoint(store, *split(args.checkpoint)).to_json()
    if args.json:
        print(json.dumps(plain, indent=2))
        return
    print(f"{plain['checkpoint']}: weights {plain['weights_sha256'][:12]}, trained on {plain['trained']} trajectories")
    for row in plain["trajectories"]:
        trained = f"{row['trajectory']:<14} task {row['task_id']}  staleness {row['staleness']}"
        print(f"  {row['run']} step {row['step']:>4}  {trained}")
    for stage in plain["warm_ups"]:
        print(f"  warmed up by {stage['stage']}")
    for parent in [*plain["data"], *plain["outside"]]:
        print(f"  {parent['kind']} {parent['ref']}")


def _trajectory(store: ObjectStore, args: argparse.Namespace) -> None:
    plain = audit_life.trajectory(store, args.run, args.trajectory).to_json()
    if args.json:
        print(json.dumps(plain, indent=2))
        return
    for name, value in plain.items():
        if name not in ("messages", "descendants"):
            print(f"{name:<12} {value!r}" if isinstance(value, str) else f"{name:<12} {value}")
    for child in plain["descendants"]:
        print(
            f"descendant   {child['checkpoint']}"
            + (f" promoted to {', '.join(child['promoted'])}" if child["promoted"] else "")
        )
