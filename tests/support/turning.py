"""Turning the wheel by hand: a learner and fake workers on one store, until so many steps are made."""

from collections.abc import Sequence

from schemas.ledger import Record
from storage.ledger import read_entry
from storage.objects import ObjectStore
from support.protocol import BASE, FakeWorker
from trainer.learner import AgenticRLLearner


def drive(made: AgenticRLLearner, workers: Sequence[FakeWorker], steps: int) -> None:
    """Let workers and learner take turns until the learner has made so many steps in all."""
    for _ in range(1000):
        if made.progress.step >= steps:
            return
        for worker in workers:
            worker.work(1)
        made.tick()
    raise AssertionError(f"stuck at step {made.progress.step}")


def finish(made: AgenticRLLearner, workers: Sequence[FakeWorker]) -> None:
    """Close the run."""
    for worker in workers:
        worker.leave()
    assert made.close() == "finished"


def records(store: ObjectStore) -> list[Record]:
    """The whole ledger."""
    found: list[Record] = []
    while (entry := read_entry(store, BASE, len(found))) is not None:
        found.append(entry.record)
    return found


def trained(store: ObjectStore) -> list[str]:
    """Ids of trained trajectories in the order of training."""
    return [str(row.trajectory) for record in records(store) for row in record.trained()]
