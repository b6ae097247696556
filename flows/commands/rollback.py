"""`headrace rollback NAME --reason TEXT`: a channel goes back to an earlier champion; its history only grows."""

import argparse
import json

from flows.commands.champion import text
from schemas.errors import RequestError
from storage.open import open_store
from tasks import registry
from tasks.request import root_url


def main(args: argparse.Namespace) -> None:
    if not args.reason.strip():
        raise RequestError("--reason is empty: say why, the history keeps it")
    entry = registry.rollback(open_store(root_url(args.root)), args.name, args.channel, args.to, args.reason.strip())
    if args.json:
        print(json.dumps({"name": args.name, "channel": args.channel, **entry.model_dump(mode="json")}, indent=2))
    else:
        print(text(f"{args.name}/{args.channel}", entry))
