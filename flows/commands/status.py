"""`headrace status`: how far a run is, or which runs there are."""

import argparse
import json
from datetime import datetime
from typing import Any

from storage.open import open_store
from tasks.request import root_url
from tasks.status import runs, status


def main(args: argparse.Namespace) -> None:
    store = open_store(root_url(args.root), write=False)
    if args.run is None:
        found = runs(store)
        print(json.dumps({"runs": found}, indent=2) if args.json else _list(found, store.url))
    else:
        one = status(store, args.run)
        print(json.dumps(one, indent=2) if args.json else _text(one))


def _list(found: list[dict[str, Any]], url: str) -> str:
    if not found:
        return f"no runs in {url}"
    return "\n".join(f"{_time(r['created'])}  {r['state']:<12} {r['run']}{_waits(r)}" for r in found)


def _waits(one: dict[str, Any]) -> str:
    """That a run waits for a person, since when and for how long."""
    asked = one["waits"]
    if asked is None:
        return ""
    return f", waits for a person since {_time(asked['asked'])} (until {_time(asked['until'])})"


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"


def _text(one: dict[str, Any]) -> str:
    lines = [f"{one['run']}: {one['state']}" + (f" ({one['reason']})" if one["reason"] else "") + _waits(one)]
    if (asked := one["waits"]) is not None:
        lines += [
            f"  {asked['reason']}",
            f"  `headrace promote {asked['candidate']} --approve NAME` (or --decline NAME)",
        ]
    lines += [f"  {s['name']:<12} {s['state']:<9} {s['key']}" for s in one["stages"]]
    if (rl := one["rl"]) is not None:
        ends = ", ".join(f"{n} {k}" for k, n in rl["dispositions"].items()) or "none yet"
        lines.append(f"  step {rl['step']}/{rl['steps']}, policy {rl['policy_version']}; trajectories: {ends}")
        staleness = rl["staleness"]
        lines.append(f"  staleness {staleness['mean']:.2f} (max {staleness['max']}, bound {staleness['bound']})")
        lines += [f"  {reason}" for reason in rl["quarantine"]]
    for e in one["evaluations"]:
        interval = f"[{e['low']:.1%}, {e['high']:.1%}]"
        success = f"success {e['success']:.1%} {interval} n={e['n']}"
        lines.append(f"  {e['name']:<10} T={e['temperature']:g}  {success}  {e['checkpoint']} ({e['setting']})")
    champion = one["champion"]
    return "\n".join([*lines, f"  champion {champion['ref']}" if champion else "  no champion yet"])
