"""The state of a run in plain values, from the store alone: what `headrace status --json` prints."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from schemas import config_text, keys
from schemas.config import Run
from schemas.evaluation import EvaluationReport
from schemas.ledger import Disposition, Kind
from schemas.manifest import RunManifest
from storage.audit_runs import folders
from storage.control import read_window, read_worker
from storage.ledger import read_entry
from storage.objects import ObjectStore
from storage.quarantine import troubles
from tasks import last_step, questions
from tasks.figures import read_report
from tasks.initial import read_champion
from tasks.lease import is_held
from tasks.record import existing_run, newest_rl, read_run
from tasks.survey import read_rl


def runs(store: ObjectStore) -> list[dict[str, Any]]:
    """Every run of the store, oldest first: name, state, when it was created, where it came from."""
    found = [m for m in (read_run(store, name) for name in folders(store, "runs/")) if m is not None]
    return [_run(store, m) for m in sorted(found, key=lambda m: m.created)]


def _run(store: ObjectStore, manifest: RunManifest) -> dict[str, Any]:
    state = _state(store, manifest)
    return {
        "run": manifest.run,
        "state": state,
        "waits": _waits(store, manifest.run, state),
        "created": manifest.created,
        "parents": [p.model_dump() for p in manifest.parents],
    }


def status(store: ObjectStore, run: str) -> dict[str, Any]:
    """One run: stages, RL, evaluations, champion. RequestError if there is no such run."""
    manifest = existing_run(store, run)
    config = config_text.check(manifest.config, keys.run_manifest(run))
    champion, state = read_champion(store, config), _state(store, manifest)
    return {
        "run": run,
        "state": state,
        "waits": _waits(store, run, state),
        "reason": manifest.reason,
        "parents": [p.model_dump() for p in manifest.parents],
        "stages": list(_stages(store, manifest, config)),
        "rl": _rl(store, manifest, config),
        "evaluations": [_evaluation(r) for r in reports(store, run)],
        "champion": champion.model_dump(mode="json") if champion else None,
    }


def reports(store: ObjectStore, run: str) -> list[EvaluationReport]:
    """The reports of a run's finished evaluations: by task set and temperature, and by step within them."""
    found = (read_report(store, keys.evaluation(run, key)) for key in folders(store, f"{keys.run(run)}/evaluations/"))
    return sorted((r for r in found if r is not None), key=lambda r: (r.setting, r.temperature, step(r), r.name))


def step(report: EvaluationReport) -> int:
    """The step of the checkpoint that it is of; -1 for weights that RL starts from and that are no checkpoint."""
    number = report.checkpoint.rpartition("@")[2]
    return int(number) if number.isdecimal() else -1


def _state(store: ObjectStore, manifest: RunManifest) -> str:
    """A run that says it is running while nobody holds its lease was interrupted."""
    abandoned = manifest.state == "running" and not is_held(store, keys.run_lease(manifest.run))
    return "interrupted" if abandoned else manifest.state


def _waits(store: ObjectStore, run: str, state: str) -> dict[str, Any] | None:
    """What a run that is being driven asks a person, since when and until when (Unix seconds); None if nothing."""
    asked = questions.waiting(store, run) if state == "running" else None
    return asked.model_dump(mode="json", include={"candidate", "reason", "asked", "until"}) if asked else None


def _stages(store: ObjectStore, manifest: RunManifest, config: Run) -> Iterator[dict[str, str]]:
    working = _state(store, manifest) == "running"
    names = [n for n in manifest.stages if n != "rl"] or [s.name for s in config.warm_up]
    for name in [*names, "rl"]:
        key = manifest.stages.get(name, "")
        finished = key != "" and _finished(store, manifest.run, name, key, config)
        yield {
            "name": name,
            "state": "finished" if finished else "running" if working and key else "waiting",
            "key": key,
        }
        working = working and finished


def _finished(store: ObjectStore, run: str, name: str, key: str, config: Run) -> bool:
    if name != "rl":
        return store.head(keys.stage_manifest(name, key)) is not None
    manifest = read_rl(store, keys.rl(run, key))
    return manifest is not None and manifest.steps >= config.rl.steps


def _rl(store: ObjectStore, manifest: RunManifest, config: Run) -> dict[str, Any] | None:
    """The newest RL stage, counted from its ledger; None before it has one."""
    base = newest_rl(manifest)
    if not base:
        return None
    dispositions, staleness, steps = _ledger(store, base)
    window = read_window(store, base)
    kept = last_step.read(store, base)
    return {
        "key": base.rpartition("rl-")[2],
        "step": steps,
        "steps": config.rl.steps,
        "policy_version": window[0].version if window else -1,
        "dispositions": dispositions,
        "staleness": {
            "mean": sum(k * n for k, n in staleness.items()) / max(staleness.total(), 1),
            "max": max(staleness, default=0),
            "bound": config.rl.max_staleness,
        },
        "trainer_idle_ratio": kept.get("trainer_idle_ratio"),
        "rollouter_idle_ratio": _rollouter_idle(store, base),
        "quarantine": [r for t in troubles(store, base) if (r := t.reason(config.rollout.quarantine_after))],
        "reward": kept.get("reward"),
        "success": kept.get("success"),
    }


def _ledger(store: ObjectStore, base: str) -> tuple[dict[str, int], Counter[int], int]:
    """Rows by disposition, trained rows by staleness, and the number of steps."""
    dispositions, staleness, steps, index = Counter[str](), Counter[int](), 0, 0
    while (entry := read_entry(store, base, index)) is not None:
        index += 1
        steps = max(steps, entry.record.metadata.step + (entry.record.metadata.kind == "step"))
        rows = [r for r in entry.record.rows if r.kind == Kind.TRAJECTORY]
        dispositions.update(str(r.disposition) for r in rows)
        staleness.update(r.staleness or 0 for r in rows if r.disposition == Disposition.TRAINED)
    return dict(dispositions), staleness, steps


def _rollouter_idle(store: ObjectStore, base: str) -> float | None:
    """Share of the workers' time in which none of their episodes was being generated."""
    idle = seconds = 0.0
    number = 0
    while (found := read_worker(store, base, number)) is not None:
        number += 1
        idle += found[0].counters.get("idle_seconds", 0.0)
        seconds += found[0].counters.get("seconds", 0.0)
    return idle / seconds if seconds else None


def _evaluation(report: EvaluationReport) -> dict[str, Any]:
    """`setting`: which task set it was (`evaluation.tasks` is reported, `promotion.tasks` is the gate's)."""
    wanted = (
        "name",
        "checkpoint",
        "weights_sha256",
        "setting",
        "tasks",
        "tasks_sha256",
        "temperature",
        "success",
        "low",
        "high",
        "n",
    )
    return {name: getattr(report, name) for name in wanted}
