"""What the artifacts of a run say: tables of figures, the report, and where its results lie in the store."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from flows.artifact_board import Artifact
from flows.lines import figure
from schemas import keys
from schemas.evaluation import EvaluationReport
from storage.expired import newest_whole
from storage.objects import ObjectStore
from tasks import decisions, status
from tasks.children import Event
from tasks.session import Session
from tasks.summary import summary
from tasks.survey import Survey

ROWS = 200
"""Steps that a table shows; of more, every so many and the newest."""
COLUMNS = {
    "step": "d",
    "reward": ".3f",
    "success": ".1%",
    "staleness_mean": ".2f",
    "staleness_max": "g",
    "trainer_idle_ratio": ".0%",
    "tokens_per_second": ",.0f",
}
"""Figures of a step, and how they are written."""


def progress(event: Event) -> Artifact | None:
    """How far RL is, from a step's event."""
    step, steps = event.get("step"), event.get("steps")
    if not isinstance(step, int) or not isinstance(steps, int) or steps < 1:
        return None
    return Artifact("progress", min(100.0, 100.0 * step / steps), f"RL step {step} of {steps}")


def steps(found: Mapping[int, Event], run: str) -> Artifact | None:
    """Reward and staleness by step. `found`: the events of steps that this flow run has seen."""
    if not found:
        return None
    shown = [{name: figure(found[step].get(name), how) for name, how in COLUMNS.items()} for step in _chosen(found)]
    left_out = len(found) - len(shown)
    more = f"; {left_out} of {len(found)} steps are left out" if left_out else ""
    return Artifact("table", json.dumps(shown), f"Steps of {run} that this flow run has seen{more}")


def _chosen(found: Mapping[int, Event]) -> list[int]:
    """At most `ROWS` steps, spread evenly; the first and the last are among them."""
    every = sorted(found)
    if len(every) <= ROWS:
        return every
    return [every[round(i * (len(every) - 1) / (ROWS - 1))] for i in range(ROWS)]


def evaluations(session: Session) -> Artifact | None:
    """Success with its interval, of every evaluation that was made."""
    rows = [_evaluation(report) for report in status.reports(session.store, session.request.run)]
    return Artifact("table", json.dumps(rows), f"Evaluations of {session.request.run}") if rows else None


def _evaluation(report: EvaluationReport) -> dict[str, str]:
    return {
        "of": report.name,
        "checkpoint": report.checkpoint,
        "task set": report.setting,
        "temperature": f"{report.temperature:g}",
        "success": f"{report.success:.1%}",
        f"{report.confidence:.0%} interval": f"{report.low:.1%} to {report.high:.1%}",
        "episodes": str(report.n),
    }


def report(session: Session, ended: str, last: Event | None, took: str) -> Artifact:
    """The run as a page. `ended`: how it ended, empty while it is driven; `last`: its newest step."""
    run, found = session.request.run, session.survey()
    lines = [f"# {_plain(run)}: {_plain(ended or 'running')}", "", f"In `{session.store.url}`, driven for {took}.", ""]
    lines += _table(("stage", "state", "key"), [(s.name, s.state, s.key) for s in found.stages])
    if last is not None:
        figures = [(name, figure(last.get(name), how)) for name, how in COLUMNS.items()]
        lines += ["", "## Newest step", "", *_table(("figure", "value"), figures)]
    if any(e.report for e in found.evaluations) or found.decision:
        lines += ["", "## Result", "", "```", *(_cut(line) for line in summary(run, found)), "```"]
    lines += _checks(found)
    lines += [
        "",
        f"`headrace status {run} --root {session.store.url}` says more; `headrace audit verify {run}` checks it.",
    ]
    return Artifact("markdown", "\n".join(lines), f"Report of {run}")


def _checks(found: Survey) -> list[str]:
    if found.decision is None:
        return []
    rows = [("ok" if c.ok else "failed", c.name, c.text) for c in found.decision.checks]
    verdict = "promoted" if found.decision.promoted else "not promoted"
    return ["", f"## The gate: {verdict}", "", *_table(("", "check", "found"), rows)]


def links(session: Session) -> Artifact | None:
    """Where checkpoint, ledger and decision lie in the store; links where its console can be opened."""
    store, run, found = session.store, session.request.run, session.survey()
    if not found.rl.key:
        return None
    base, rows = keys.rl(run, found.rl.key), []
    checkpoint = newest_whole(store, base)
    if checkpoint is not None:
        rows.append((f"checkpoint {run}@{checkpoint.step}", _place(store, checkpoint.prefix)))
        rows.append(("its manifest", _place(store, keys.checkpoint_manifest(base, checkpoint.step))))
        rows.append(("its weights", _place(store, checkpoint.policy.prefix)))
        last = keys.ledger(base, max(checkpoint.ledger_index - 1, 0))
        rows.append((f"its ledger head {checkpoint.ledger_head[:12]}", _place(store, last)))
    made = decisions.newest(store, keys.gate(run, found.gate_key)) if found.gate_key else None
    if made is not None:
        rows.append(("decision of the gate", _place(store, made[0])))
    promotion = session.request.config.promotion
    channel = keys.channel(session.request.config.registry_name, promotion.channel)
    if store.head(channel) is not None:
        rows.append((f"channel `{promotion.channel}` of the registry", _place(store, channel)))
    table = ["| what | where |", "| --- | --- |", *(f"| {what} | {where} |" for what, where in rows)]
    return Artifact("markdown", "\n".join(table), f"Where the results of {run} lie") if rows else None


def _place(store: ObjectStore, key: str) -> str:
    """A key of the store for people: a link into Google Cloud's console, elsewhere its address as text."""
    address = f"{store.url}/{key}"
    if not address.startswith("gs://"):
        return f"`{address}`"
    return f"[{address}](https://console.cloud.google.com/storage/browser/_details/{address.removeprefix('gs://')})"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(_plain(str(cell)) for cell in line) + " |" for line in lines]


def _plain(text: str) -> str:
    """Text that markdown and HTML leave as it is, on one line: people and models have written parts of it."""
    return re.sub(r"([\\`*_\[\]<>|#!])", r"\\\1", " ".join(_cut(text).split()))


def _cut(text: str) -> str:
    return text if len(text) <= 500 else text[:500] + "…"
