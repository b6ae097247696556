"""`headrace champion NAME`: what a channel points to now."""

import argparse
import json
from datetime import datetime

from schemas.promotion import Promotion
from storage.open import open_store
from tasks import registry
from tasks.request import root_url


def main(args: argparse.Namespace) -> None:
    channel = registry.standing(open_store(root_url(args.root), write=False), args.name, args.channel)
    champion = channel.history[-1]
    if args.json:
        plain = {"name": channel.name, "channel": channel.channel, **champion.model_dump(mode="json")}
        print(json.dumps(plain, indent=2))
    else:
        print(text(f"{channel.name}/{channel.channel}", champion))


def text(where: str, entry: Promotion) -> str:
    """An entry of a channel in a few lines."""
    agreed = f", approved by {entry.approved_by}" if entry.approved_by else ""
    lines = [
        f"{where}: {entry.ref}",
        f"  {entry.kind:<9} {datetime.fromtimestamp(entry.time):%Y-%m-%d %H:%M} by {entry.by or 'unknown'}{agreed}",
        f"  weights   {entry.weights.sha256[:12]} in {entry.weights.prefix}",
        f"  before    {entry.previous or 'none'}",
        f"  because   {entry.reason}",
    ]
    return "\n".join(lines)
