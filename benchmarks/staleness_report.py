"""What the runs of `staleness.py` say: one row for all seeds of a setting, as a table and beside the curves.

Wall seconds are those of the learner's loop, from the end of the first step on: the start of the workers and what is
compiled for the first step are the same for all. A spread is the least and the greatest of the seeds.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from staleness_plot import plot

REACHED = 0.8
WIDEST = 128
LAST = 5
BEGIN, END = "<!-- written by benchmarks/staleness.py --report -->", "<!-- end -->"
TITLE = "# Staleness\n"
HEAD = (
    "bound", "correction", "episodes in flight", "seeds", "staleness realised (in flight + in queue)", "mean reward",
    "against bound 0, by seed", f"last {LAST} batches", "held-out", "step of 80 %", "seconds to 80 %", "seconds in all",
)  # fmt: skip


def seconds(line: dict[str, Any]) -> list[float]:
    """When each step ended, from the end of the first."""
    figures = line["figures"]
    spent = [
        (a or 0) + (b or 0) for a, b in zip(figures["trainer/seconds"], figures["trainer/waited_seconds"], strict=True)
    ]
    return list(accumulate([0.0, *spent[1:]]))


def rewards(line: dict[str, Any]) -> list[float]:
    """Each step's mean reward; a step that trained nothing repeats the one before."""
    return list(accumulate(line["figures"]["reward"], lambda before, now: before if now is None else now))


def settings(lines: Iterable[dict[str, Any]]) -> list[tuple[tuple[str, int, int, int], list[dict[str, Any]]]]:
    """(correction, concurrency, bound, steps) → its runs by seed; the widest concurrency first."""

    def key(line: dict[str, Any]) -> tuple[str, int, int, int]:
        return line["correction"], line["concurrency"], line["max_staleness"], line["steps"]

    def order(line: dict[str, Any]) -> tuple[Any, ...]:
        correction, concurrency, bound, steps = key(line)
        return -concurrency, ("none", "decoupled", "truncated").index(correction), bound, steps, line["seed"]

    return [(k, list(runs)) for k, runs in groupby(sorted(lines, key=order), key)]


def rows_of(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a setting; figures of several seeds as (mean, least, greatest)."""
    return [_row(setting, runs, lines) for setting, runs in settings(lines)]


def _row(setting: tuple[str, int, int, int], runs: list[dict[str, Any]], lines: Sequence[dict]) -> dict[str, Any]:
    correction, concurrency, bound, steps = setting
    same = {(x["correction"], x["concurrency"], x["steps"], x["seed"]): x for x in lines if x["max_staleness"] == 0}
    pairs = [
        (run, same.get((correction, concurrency, steps, run["seed"])) or same.get(("none", WIDEST, steps, run["seed"])))
        for run in runs
    ]
    timed = [run for run in runs if run["learners"] == 1]
    realised = _mean(_mean(run["figures"]["off_policy/mean"]) for run in runs)
    return {
        "bound": bound,
        "correction": correction,
        "concurrency": concurrency,
        "steps": steps,
        "seeds": [run["seed"] for run in runs],
        "realised": realised,
        "in_flight": _mean(_mean(run["figures"]["off_policy/in_flight/mean"]) for run in runs),
        "in_queue": _mean(_mean(run["figures"]["off_policy/in_queue/mean"]) for run in runs),
        "greatest": max(value or 0 for run in runs for value in run["figures"]["off_policy/max"]),
        "below_half": realised < bound / 2,
        "reward": _spread(_mean(rewards(run)) for run in runs),
        "against_0": _spread(_mean(rewards(a)) - _mean(rewards(b)) for a, b in pairs if b) if bound else None,
        "last": _spread(_mean(rewards(run)[-LAST:]) for run in runs),
        "held_out": _spread(run["held_out"]["candidate"]["success"] for run in runs if "candidate" in run["held_out"]),
        "step_reached": _spread_if_all(_reached(run, lambda run, i: i + 1) for run in runs),
        "seconds_reached": _spread_if_all(_reached(run, lambda run, i: seconds(run)[i]) for run in timed),
        "seconds": _spread(seconds(run)[-1] for run in timed),
    }


def _reached(run: dict[str, Any], measure: Callable[[dict[str, Any], int], float]) -> float | None:
    first = next((i for i, reward in enumerate(rewards(run)) if reward >= REACHED), None)
    return None if first is None else measure(run, first)


def _mean(values: Iterable[float | None]) -> float:
    kept = [v for v in values if v is not None]
    return sum(kept) / len(kept)


def _spread(values: Iterable[float]) -> tuple[float, float, float] | None:
    kept = list(values)
    return (sum(kept) / len(kept), min(kept), max(kept)) if kept else None


def _spread_if_all(values: Iterable[float | None]) -> tuple[float, float, float] | None:
    """A mean of those that reached it would flatter a setting where some did not."""
    kept = list(values)
    return None if None in kept else _spread(v for v in kept if v is not None)


def write_report(path: Path, lines: Sequence[dict[str, Any]], missing: Sequence[str]) -> None:
    """Write what is between the marks of the document (made where it is not there), and the plot beside it."""
    image = path.with_suffix(".svg")
    image.write_text(plot(settings(lines), rewards, seconds), encoding="utf-8")
    text = path.read_text(encoding="utf-8") if path.exists() else f"{TITLE}\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    body = "\n\n".join([_state(lines, missing), f"![reward by steps and by seconds]({image.name})", _table(lines)])
    path.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", encoding="utf-8")


def _state(lines: Sequence[dict[str, Any]], missing: Sequence[str]) -> str:
    loads = [value for line in lines for value in line["load"]]
    cores = sorted({line["cores"] for line in lines})
    seeds: dict[str, list[str]] = {}
    for setting, _, seed in (name.rpartition("-seed") for name in missing):
        seeds.setdefault(setting, []).append(seed)
    left = "; ".join(f"`{setting}` of seed {', '.join(numbers)}" for setting, numbers in seeds.items())
    told = f"Not run: {len(missing)} ({left})." if missing else "None is missing."
    return (
        f"Finished runs: {len(lines)}, on {' or '.join(map(str, cores))} cores with a load average around them of "
        f"{min(loads):.1f} to {max(loads):.1f}. {told}"
    )


def _table(lines: Sequence[dict[str, Any]]) -> str:
    cells = [HEAD, tuple("---" for _ in HEAD), *(_cells(row) for row in rows_of(lines))]
    table = "\n".join(f"| {' | '.join(line)} |" for line in cells)
    note = "\\* below half of its bound: such a row says nothing about its bound."
    return f"{table}\n\n{note}" if "\\*" in table else table


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    mark = " \\*" if row["below_half"] else ""
    return (
        str(row["bound"]),
        row["correction"],
        str(row["concurrency"]),
        ", ".join(map(str, row["seeds"])),
        f"{row['realised']:.2f} ({row['in_flight']:.2f} + {row['in_queue']:.2f}), at most {row['greatest']:.0f}{mark}",
        _share(row["reward"]),
        _share(row["against_0"], "+"),
        _share(row["last"]),
        _share(row["held_out"]),
        _number(row["step_reached"]),
        _number(row["seconds_reached"]),
        _number(row["seconds"]),
    )


def _share(spread: tuple[float, float, float] | None, sign: str = "") -> str:
    return _number(spread and (spread[0] * 100, spread[1] * 100, spread[2] * 100), f"{sign}.1f")


def _number(spread: tuple[float, float, float] | None, form: str = ".0f") -> str:
    if spread is None:
        return ""
    mean, least, greatest = spread
    return f"{mean:{form}}" if least == greatest else f"{mean:{form}} [{least:{form}}, {greatest:{form}}]"
