"""What a person may see and do about tasks that are not played any more: list them, and take one back into play.

Workers ask the store for every group that they claim, so a task that is released is played from the next group on, by
workers that are at work already, too.
"""

from collections.abc import Sequence
from typing import Any

from schemas import config_text, keys
from schemas.errors import RequestError
from schemas.quarantine import TaskTrouble
from storage.objects import ObjectStore
from storage.quarantine import change_trouble, troubles
from tasks.record import existing_run, newest_rl


def listed(store: ObjectStore, run: str) -> list[dict[str, Any]]:
    """The tasks of the run's newest RL stage that are in trouble: in quarantine, or on their way there. RequestError
    where there is no such run."""
    manifest = existing_run(store, run)
    after = config_text.check(manifest.config, keys.run_manifest(run)).rollout.quarantine_after
    base = newest_rl(manifest)
    return [_shown(t, after) for t in troubles(store, base) if _harms(t)] if base else []


def release(store: ObjectStore, run: str, names: Sequence[str]) -> list[str]:
    """Forget the trouble with these tasks; returns their ids. RequestError, before anything is changed, where one has
    none or the run has no RL stage."""
    base = newest_rl(existing_run(store, run))
    if not base:
        raise RequestError(f"run {run} has no RL stage yet, so no task of it is in quarantine")
    found = {t.task_id: t for t in troubles(store, base) if _harms(t)}
    for name in names:
        if name not in found:
            raise RequestError(
                f"the task `{name}` is not in quarantine in run {run}: `headrace quarantine list {run}` names those "
                f"that are"
            )
    for trouble in (found[name] for name in dict.fromkeys(names)):
        change_trouble(store, base, trouble, _forgiven)
    return list(dict.fromkeys(names))


def _forgiven(trouble: TaskTrouble) -> TaskTrouble:
    return trouble.model_copy(update={"groups": (), "cause": "", "deadly": ""})


def _harms(trouble: TaskTrouble) -> bool:
    return bool(trouble.groups or trouble.deadly)


def _shown(trouble: TaskTrouble, after: int) -> dict[str, Any]:
    reason = trouble.reason(after)
    return {
        "task": trouble.task_id,
        "quarantined": bool(reason),
        "failed_groups": len(trouble.groups),
        "cause": trouble.deadly or trouble.cause,
        "reason": reason,
    }
