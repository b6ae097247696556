"""`headrace gc [RUN…]`: remove checkpoints that the runs' `retention` does not keep, and say what and why."""

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from flows.tables import show
from storage.open import open_store
from tasks.expiry import collect, preview
from tasks.expiry_plan import Item, RunPlan, chosen_runs
from tasks.request import root_url


def main(args: argparse.Namespace) -> None:
    store = open_store(root_url(args.root), write=not args.dry_run)
    runs = chosen_runs(store, args.runs)
    plans = []
    for plan in preview(store, runs) if args.dry_run else collect(store, runs):
        plans.append(plan)
        if not args.json:
            _tell(plan, dry=args.dry_run)
    if args.json:
        print(json.dumps(_plain(plans, dry=args.dry_run), indent=2))
    elif plans:
        print(_total("all runs", [i for p in plans for i in p.items], dry=args.dry_run))
    else:
        print(f"no runs in {store.url}")


def _tell(plan: RunPlan, *, dry: bool) -> None:
    if plan.skipped:
        print(f"headrace: run {plan.run} is left alone: {plan.skipped}", file=sys.stderr)
        return
    print(_total(plan.run, plan.items, dry=dry) + (f"; {plan.expired} expired before" if plan.expired else ""))
    rows = sorted(plan.items, key=lambda i: (i.kept, i.kind, i.step))
    table = [{"what": i.kind, "name": i.name, "bytes": i.bytes, "": _verb(i, dry=dry), "why": i.why} for i in rows]
    if table:
        show(pa.Table.from_pylist(table))


def _verb(item: Item, *, dry: bool) -> str:
    return "kept" if item.kept else "would go" if dry else "removed"


def _total(name: str, items: "list[Item] | tuple[Item, ...]", *, dry: bool) -> str:
    gone, kept = [i for i in items if not i.kept], [i for i in items if i.kept]
    return (
        f"{name}: {'would remove' if dry else 'removed'} {len(gone)} ({_size(gone)}), kept {len(kept)} ({_size(kept)})"
    )


def _size(items: list[Item]) -> str:
    count = sum(i.bytes for i in items)
    return f"{count / 1e6:,.1f} MB"


def _plain(plans: list[RunPlan], *, dry: bool) -> dict[str, Any]:
    items = [i for p in plans for i in p.items]
    return {
        "dry_run": dry,
        "removed_bytes": sum(i.bytes for i in items if not i.kept),
        "kept_bytes": sum(i.bytes for i in items if i.kept),
        "runs": [
            {
                "run": plan.run,
                "skipped": plan.skipped,
                "expired_before": plan.expired,
                "items": [{k: v for k, v in asdict(i).items() if k not in ("run", "base")} for i in plan.items],
            }
            for plan in plans
        ],
    }
