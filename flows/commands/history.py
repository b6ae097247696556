"""`headrace history NAME`: every champion that a channel has had, oldest first."""

import argparse
import json
from datetime import datetime

import pyarrow as pa

from flows.tables import show
from storage.open import open_store
from tasks import registry
from tasks.request import root_url


def main(args: argparse.Namespace) -> None:
    channel = registry.standing(open_store(root_url(args.root), write=False), args.name, args.channel)
    if args.json:
        print(json.dumps(channel.model_dump(mode="json"), indent=2))
        return
    rows = [
        {
            "when": f"{datetime.fromtimestamp(entry.time):%Y-%m-%d %H:%M}",
            "champion": entry.ref,
            "kind": entry.kind,
            "by": entry.by,
            "approved by": entry.approved_by,
            "weights": entry.weights.sha256[:12],
            "because": entry.reason,
        }
        for entry in channel.history
    ]
    count = "1 entry" if len(rows) == 1 else f"{len(rows)} entries"
    print(f"{channel.name}/{channel.channel}: {count}, the last is the champion")
    show(pa.Table.from_pylist(rows), limit=len(rows))
