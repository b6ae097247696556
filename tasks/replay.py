"""Replaying a checkpoint in a process of its own, for the audit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.errors import AuditViolation, RequestError, RunStopped
from storage.audit_runs import find_checkpoint
from storage.objects import ObjectStore
from tasks.children import Command, Event, run_child
from tasks.out_folder import check_out, filled

_SILENCE = 300.0
"""Seconds without progress after which a replay is taken for hung; what it announces comes on top."""


def replay(
    store: ObjectStore,
    run: str,
    step: int | None,
    *,
    from_start: bool,
    on_event: Callable[[Event], None],
    weights: Path | None = None,
) -> dict[str, Any]:
    """What `trainer.replay_process` found for RUN@STEP (default: the newest checkpoint). `weights`: a folder, not there
    yet, that takes the policy's weights in Hugging Face layout.

    Raises RequestError if there is none, AuditViolation if other parameters came out, RunStopped if it could not run.
    """
    if weights is None:
        return _replay(store, run, step, from_start=from_start, on_event=on_event, extra=())
    check_out(weights, "--weights")
    with filled(weights, "--weights") as folder:
        return _replay(store, run, step, from_start=from_start, on_event=on_event, extra=("--weights", str(folder)))


def _replay(
    store: ObjectStore,
    run: str,
    step: int | None,
    *,
    from_start: bool,
    on_event: Callable[[Event], None],
    extra: tuple[str, ...],
) -> dict[str, Any]:
    base, manifest = find_checkpoint(store, run, step)
    if store.url.startswith("memory://"):
        raise RequestError(f"{store.url} lives in one process and a replay needs another: give a folder or a store")
    found: list[Event] = []
    errors: list[Event] = []

    def take(event: Event) -> None:
        on_event(event)
        found.extend([event] if event["event"] == "replay" else [])
        errors.extend([event] if event["event"] == "error" else [])

    arguments = ("--root", store.url, "--base", base, "--step", str(manifest.step))
    arguments = (*arguments, *(("--from-start",) if from_start else ()), *extra)
    command = Command("replay", "trainer.replay_process", arguments)
    outcome = run_child(command, take, stop=lambda: False, silence=_SILENCE)
    if outcome.code == AuditViolation.exit_code and errors:
        raise AuditViolation(outcome.cause)
    if outcome.refused:
        raise RequestError(outcome.cause)
    if outcome.code or not found:
        raise RunStopped(f"the replay of {run}@{manifest.step} could not be made: {outcome.cause}")
    return {name: value for name, value in found[-1].items() if name != "event"}
