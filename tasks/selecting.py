"""A run's own log as the data of a warm-up: which trajectories are taken is decided and written down before it starts.

The selection is a document under its own digest, like any data file. A run keeps the one that it was first started
with, for as long as it asks for the same.
"""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from schemas import keys
from schemas.digest import sha256
from schemas.errors import RequestError
from schemas.ledger import Disposition, Kind
from schemas.manifest import RunManifest
from schemas.selection import Selected, Selection
from schemas.trajectory import ShardMetadata, Trajectory
from schemas.warm_ups import RunPairs, RunSamples, WarmUp
from storage.audit_runs import read_spec, stages
from storage.catalog import Catalog, open_catalog
from storage.documents import read_document
from storage.objects import ObjectStore, find
from storage.selected import Place, read_places
from tasks.picking import Row, pairs, samples
from tasks.sources import DataFile, read_kept

ENDED_WELL = (Disposition.TRAINED, Disposition.ZERO_ADVANTAGE, Disposition.STALE, Disposition.INCOMPLETE)
"""Ends of trajectories that were played to their end and scored, whether or not they were trained."""
_COLUMNS = ["trajectory", "step", "group", "sample", "task_id", "worker", "seq", "row", "row_digest"]


def selected_file(store: ObjectStore, run: str, stage: WarmUp, settings: RunPairs) -> DataFile:
    """The selection that a stage of this run asks for. RequestError where there is nothing to take."""
    data = _kept(store, run, stage, settings) or select(store, run, stage, settings).to_bytes()
    return DataFile(f"run {settings.run}", data, "json", sha256(data))


def _kept(store: ObjectStore, run: str, stage: WarmUp, settings: RunPairs) -> bytes | None:
    record = read_document(store, RunManifest, keys.run_manifest(run))
    key = record.data.get(f"warm_up.{stage.name}", "") if record else ""
    if not key.endswith(".json"):
        return None
    data = read_kept(store, key).data
    return data if Selection.from_bytes(data, key).settings == settings.model_dump(mode="json") else None


def select(store: ObjectStore, run: str, stage: WarmUp, settings: RunPairs) -> Selection:
    """Take from the newest RL stage of the run that the settings name."""
    setting = f"warm_up.{stage.name}.data"
    if settings.run == run:
        raise RequestError(f"{setting} names run `{run}` itself, which has no log before it has warmed up")
    if find(store, keys.run_manifest(settings.run)) is None:
        raise RequestError(
            f"{setting} names run `{settings.run}`, which is not in {store.url}: `headrace status` lists the runs"
        )
    base = stages(store, settings.run)[-1]
    spec, catalog = read_spec(store, base), open_catalog(store, base)
    end, head = _end(catalog, settings, setting)
    found = _read(store, base, catalog, settings.first_step, end)
    chosen, rejected, left_out = _pick(found, settings)
    if not chosen:
        why = ", ".join(f"{n} {reason}" for reason, n in sorted(left_out.items()) if n) or "nothing was played there"
        raise RequestError(
            f"{setting} finds nothing to learn from in steps {settings.first_step} to {end} of run {spec.run}: {why}"
        )
    _check_length(found, [*chosen, *rejected], stage, spec.run)
    metadata = found[chosen[0]].metadata
    return Selection(
        run=spec.run,
        rl=spec.key,
        settings=settings.model_dump(mode="json"),
        first_step=settings.first_step,
        end_step=end,
        ledger_head=head,
        tasks=spec.tasks,
        tasks_sha256=spec.tasks_sha256,
        tokenizer=metadata.tokenizer,
        chat_format=metadata.chat_format,
        chosen=tuple(found[row].selected for row in chosen),
        rejected=tuple(found[row].selected for row in rejected),
        left_out={reason: n for reason, n in sorted(left_out.items()) if n},
    )


@dataclass(frozen=True)
class _Found:
    """What the selection says of a row of the log."""

    selected: Selected
    tokens: int
    metadata: ShardMetadata


def _end(catalog: Catalog, settings: RunPairs, setting: str) -> tuple[int, str]:
    """The exclusive end in steps, and the digest of the last record before it."""
    steps = [(note.step, note.digest) for note in catalog.records if note.kind == "step"]
    done = steps[-1][0] + 1 if steps else 0
    end = done if settings.end_step is None else settings.end_step
    if end > done or settings.first_step >= end:
        asked = f"{settings.first_step} to {settings.end_step or done}"
        raise RequestError(f"{setting} wants steps {asked} of run {settings.run}, whose ledger has {done}")
    return end, next(digest for step, digest in reversed(steps) if step == end - 1)


def _read(store: ObjectStore, base: str, catalog: Catalog, first: int, end: int) -> dict[Row, _Found]:
    """Every row that ended well in these steps and can be trained as one stream."""
    wanted = (pc.field("kind") == Kind.TRAJECTORY) & pc.field("disposition").isin(list(ENDED_WELL))
    table = catalog.rows(_COLUMNS, wanted).filter((pc.field("step") >= first) & (pc.field("step") < end))
    ledger: dict[Place, dict[str, Any]] = {(r["worker"], r["seq"], r["row"]): r for r in table.to_pylist()}
    found = {}
    for place, trajectory, metadata in read_places(store, base, {p: r["row_digest"] for p, r in ledger.items()}):
        if trajectory.segment_starts == (0,) and any(trajectory.mask):
            told = Selected(**ledger[place], prompt=_prompt(trajectory), reward=trajectory.reward)
            found[_row(told, trajectory)] = _Found(told, len(trajectory.tokens), metadata)
    return found


def _row(told: Selected, trajectory: Trajectory) -> Row:
    tokens, mask = np.asarray(trajectory.tokens, "<i4"), np.asarray(trajectory.mask, "u1")
    return Row(
        step=told.step,
        group=told.group,
        sample=told.sample,
        task_id=told.task_id,
        reward=told.reward,
        stream=sha256(tokens.tobytes() + mask.tobytes()),
        prompt=sha256(tokens[: int(mask.argmax())].tobytes()),
    )


def _pick(found: dict[Row, _Found], settings: RunPairs) -> tuple[list[Row], list[Row], Counter[str]]:
    if isinstance(settings, RunSamples):
        chosen, left_out = samples(found, settings)
        return chosen, [], left_out
    both, left_out = pairs(found, settings)
    return [better for better, _ in both], [worse for _, worse in both], left_out


def _check_length(found: dict[Row, _Found], rows: list[Row], stage: WarmUp, run: str) -> None:
    longest = max((found[row] for row in rows), key=lambda one: one.tokens)
    if longest.tokens > stage.max_length:
        raise RequestError(
            f"warm_up.{stage.name}: trajectory {longest.selected.trajectory} of run {run} has {longest.tokens} tokens, "
            f"more than max_length = {stage.max_length}: raise it"
        )


def _prompt(trajectory: Trajectory) -> str:
    messages = json.loads(trajectory.messages)
    return next((m.get("content") or "" for m in messages if m.get("role") == "user"), "")
