"""What `headrace gc` removes of a run and what it keeps, from the store alone, the same with `--dry-run` and without.

Only checkpoints' snapshots and weights, and copies that no manifest names, are ever removed. Shards, ledger, claims,
evaluations, data files, imported and warm-up weights and all manifests stay.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from schemas import config_text, keys
from schemas.errors import RequestError
from schemas.upkeep import Retention
from storage.audit_runs import folders, read_spec
from storage.objects import ObjectStore, find
from tasks.inventory import Files, Inventory, take_inventory
from tasks.record import read_run
from tasks.references import References
from tasks.retention import Candidate, Verdict, judge
from tasks.survey import read_rl

TORN_HOURS = 1.0
"""Files without a manifest are at least this old before they are taken for those of a killed learner."""


@dataclass(frozen=True)
class Item:
    """A checkpoint, or files that are none."""

    run: str
    base: str
    kind: Literal["checkpoint", "policy", "leftover"]
    """`policy`: old weights that no checkpoint needs; `leftover`: a copy that no manifest names."""
    name: str
    """`RUN@STEP`, or the key of the folder."""
    step: int
    """Step or version."""
    files: tuple[str, ...]
    bytes: int
    kept: bool
    why: str
    tombstone: str = ""
    """The state of a checkpoint's tombstone; empty where there is none."""

    @property
    def done(self) -> bool:
        """It expired before and has nothing left to remove."""
        return self.tombstone == "expired" and not self.files


@dataclass(frozen=True)
class RunPlan:
    """What would become of one run's files."""

    run: str
    items: tuple[Item, ...]
    expired: int
    """Checkpoints that expired before and have nothing left to remove."""
    skipped: str = ""
    """Why the run is left alone; empty if it is not."""


def plan_run(store: ObjectStore, run: str, refers: References, now: float) -> RunPlan:
    """The plan for a run. `now`: Unix seconds."""
    manifest = read_run(store, run)
    if manifest is None:
        return RunPlan(run, (), 0, f"{keys.run_manifest(run)} is missing")
    settings = config_text.check(manifest.config, keys.run_manifest(run)).retention
    bases = [f"{keys.run(run)}/{n}" for n in folders(store, f"{keys.run(run)}/") if n.startswith("rl-")]
    found = [_stage(store, run, b, settings, refers, now) for b in bases if find(store, keys.spec(b)) is not None]
    items = [i for plan in found for i in plan]
    return RunPlan(run, tuple(i for i in items if not i.done), sum(i.done for i in items))


def _stage(store: ObjectStore, run: str, base: str, settings: Retention, refers: References, now: float) -> list[Item]:
    held = take_inventory(store, base)
    newest = config_text.check(read_spec(store, base).config, keys.spec(base)).rl.max_staleness + 2
    verdicts = judge(
        [_candidate(held, step, run, refers, now) for step in sorted(held.checkpoints)],
        settings,
        published=list(held.policies),
        newest_policies=newest,
        end=_end(store, base),
    )
    return [
        *(_checkpoint(held, run, step, verdict) for step, verdict in verdicts.items()),
        *_policies(held, run, settings, newest, refers, now),
        *_leftovers(held, run, settings, now),
    ]


def _end(store: ObjectStore, base: str) -> int:
    manifest = read_rl(store, base)
    return manifest.checkpoint if manifest else 0


def _candidate(held: Inventory, step: int, run: str, refers: References, now: float) -> Candidate:
    tombstone = held.tombstones.get(step)
    return Candidate(
        step=step,
        hours=(now - held.committed.get(step, now)) / 3600,
        referred=refers.to(run, held.checkpoints[step].policy),
        gone=tombstone is not None and tombstone.state == "expired",
    )


def _checkpoint(held: Inventory, run: str, step: int, verdict: Verdict) -> Item:
    parts = held.snapshot(step), held.policy(step)
    files = tuple(key for part in parts for key in part.keys)
    size = sum(part.bytes for part in parts)
    name, stone = f"{run}@{step}", held.tombstones.get(step)
    state = stone.state if stone else ""
    return Item(run, held.base, "checkpoint", name, step, files, size, verdict.kept, verdict.why, state)


def _policies(
    held: Inventory, run: str, settings: Retention, newest: int, refers: References, now: float
) -> Iterator[Item]:
    """Weights that their learner was killed before removing (rule 22)."""
    needed = set(sorted(held.policies)[-newest:])
    for version, manifest in sorted(held.policies.items()):
        files = held.policy(version)
        if not files.keys or version in held.checkpoints:
            continue
        young = (now - files.modified) / 3600 < settings.min_age_hours
        why = (f"one of the newest {newest} policies" if version in needed else "") or refers.to(run, manifest.weights)
        why = why or (f"younger than min_age_hours = {settings.min_age_hours:g}" if young else "")
        yield _folder(held, run, "policy", version, files, bool(why), why or "no checkpoint needs it")


def _leftovers(held: Inventory, run: str, settings: Retention, now: float) -> Iterator[Item]:
    hours = max(settings.min_age_hours, TORN_HOURS)
    for (kind, number, learner), files in sorted(held.files.items()):
        manifest = (held.checkpoints if kind == "checkpoints" else held.policies).get(number)
        if manifest is not None and manifest.learner == learner:
            continue
        young = (now - files.modified) / 3600 < hours
        why = "another learner's copy stands" if manifest else "its learner died before it was whole"
        why = f"no manifest names it, but it is younger than {hours:g} h" if young else why
        yield _folder(held, run, "leftover", number, files, young, why)


def _folder(
    held: Inventory, run: str, kind: Literal["policy", "leftover"], number: int, files: Files, kept: bool, why: str
) -> Item:
    return Item(run, held.base, kind, files.prefix, number, files.keys, files.bytes, kept, why)


def chosen_runs(store: ObjectStore, wanted: list[str]) -> list[str]:
    """The runs that were asked for, or all. RequestError if there is no such run."""
    present = list(folders(store, "runs/"))
    for run in wanted:
        if run not in present:
            raise RequestError(f"there is no run `{run}` in {store.url}: `headrace status` lists the runs")
    return list(dict.fromkeys(wanted)) or present
