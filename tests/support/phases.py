"""Where a learner is between two things it makes durable: the places at which a death must not matter.

`watch` puts a call behind each of those places in the real code. What the call does is the test's affair: note the
phase, die, stop, or let another learner take over meanwhile.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from storage import ledger
from trainer import learner, recovery
from trainer.learner import AgenticRLLearner
from trainer.publish import Publisher
from trainer.tail import ShardTail

Patch = Callable[[Any, str, Any], None]
"""Set an attribute, as `monkeypatch.setattr` or `setattr` does."""

STEP = (
    "chosen, not recorded",
    "recorded, not updated",
    "updated, not published",
    "weights without a manifest",
    "published, window not moved",
)
CHECKPOINT = ("checkpoint files without a manifest", "checkpoint written, window not moved")
END = ("workers left, no end markers", "end markers, not closed", "closed")
WAITING, RECOVERING = "waiting for rows", "recovering"


def watch(patch: Patch, updater: type, enter: Callable[[str], None]) -> None:
    """Have `enter(phase)` called wherever a learner with such an updater comes from one phase into the next."""
    replaying: list[bool] = []

    def live(phase: str) -> None:
        if not replaying:
            enter(phase)

    def replay(*args: Any, **options: Any) -> int:
        replaying.append(True)
        try:
            return replayed(*args, **options)
        finally:
            replaying.pop()

    replayed = recovery.replay
    patch(recovery, "replay", replay)
    patch(AgenticRLLearner, "recover", _around(AgenticRLLearner.recover, enter, RECOVERING, WAITING))
    patch(AgenticRLLearner, "_step", _around(AgenticRLLearner._step, enter, "", WAITING))
    patch(ledger, "append", _append(ledger.append, enter))
    patch(updater, "update", _around(updater.update, live, "", STEP[2]))  # type: ignore[attr-defined]
    patch(updater, "save", _around(updater.save, enter, "", CHECKPOINT[0]))  # type: ignore[attr-defined]
    patch(Publisher, "publish", _publish(Publisher.publish, enter))
    patch(learner, "write_checkpoint", _around(learner.write_checkpoint, enter, "", CHECKPOINT[1]))
    patch(ShardTail, "mark_ends", _around(ShardTail.mark_ends, enter, END[0], END[1]))


def _around(function: Callable[..., Any], enter: Callable[[str], None], before: str, after: str) -> Callable[..., Any]:
    def wrapped(*args: Any, **options: Any) -> Any:
        if before:
            enter(before)
        found = function(*args, **options)
        enter(after)
        return found

    return wrapped


def _append(append: Callable[..., str], enter: Callable[[str], None]) -> Callable[..., str]:
    def wrapped(store: Any, base: str, index: int, record: Any) -> str:
        step = record.metadata.kind == "step"
        if step:
            enter(STEP[0])
        head = append(store, base, index, record)
        enter(STEP[1] if step else END[2])
        return head

    return wrapped


def _publish(publish: Callable[..., Any], enter: Callable[[str], None]) -> Callable[..., Any]:
    def wrapped(publisher: Publisher, *args: Any) -> Any:
        save = _around(publisher.save, enter, "", STEP[3])
        found = publish(dataclasses.replace(publisher, save=save), *args)
        enter(STEP[4])
        return found

    return wrapped
