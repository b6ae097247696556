"""What the benchmarks share: alternatives measured in turn, wall and processor seconds, a table and a line of JSON."""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from typing import Any


def in_turn(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, dict[str, float]]:
    """Call each alternative once a round; the median round's wall seconds and processor seconds of this process."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(seconds(call))
    return {
        name: {"wall": sorted(w for w, _ in t)[rounds // 2], "cpu": sorted(c for _, c in t)[rounds // 2]}
        for name, t in taken.items()
    }


def seconds(call: Callable[[], Any]) -> tuple[float, float]:
    """(wall, processor) seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def arguments(description: str, **options: int) -> argparse.Namespace:
    """The options of a benchmark: its numbers, and `--json`."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    return parser.parse_args()


def report(rows: list[dict[str, Any]], meets: dict[str, bool], *, as_json: bool) -> None:
    """Print the rows as a table, what is aimed at and whether it is met, and with `--json` all of it as one line."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_text(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for aim, met in meets.items():
        print(f"{'met' if met else 'NOT met'}: {aim}")
    if as_json:
        print(json.dumps({"rows": rows, "meets": meets}))


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
