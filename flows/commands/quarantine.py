"""`headrace quarantine list RUN` and `release RUN TASK …`: tasks that are not played any more, and taking them back."""

import argparse
import json
from typing import Any

from storage.open import open_store
from tasks.quarantine import listed, release
from tasks.request import root_url


def main(args: argparse.Namespace) -> None:
    store = open_store(root_url(args.root), write=args.action == "release")
    if args.action == "release":
        released = release(store, args.run, args.tasks)
        text = f"released: {', '.join(released)}; played again from the next group on"
        print(json.dumps({"run": args.run, "released": released}, indent=2) if args.json else text)
        return
    found = listed(store, args.run)
    print(json.dumps({"run": args.run, "tasks": found}, indent=2) if args.json else _text(args.run, found))


def _text(run: str, found: list[dict[str, Any]]) -> str:
    if not found:
        return f"no task of run {run} is in quarantine"
    return "\n".join(t["reason"] or _suspected(t) for t in found)


def _suspected(task: dict[str, Any]) -> str:
    return (
        f"task {task['task']} is still played: every attempt at it failed in {task['failed_groups']} of its groups in "
        f"a row, the last with {task['cause']}"
    )
