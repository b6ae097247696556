"""Episodes of an evaluation are never trained: neither where they lie, nor put wherever the layout lets one put them.

They are of the same run, weights, group and sample numbers as the training's; what is not theirs is the stage's seed.
"""

import dataclasses
from collections.abc import Callable

import pytest
from support.audited import STEPS, edit_record, end, read_record, start, turn
from support.protocol import BASE, METADATA, FakeWorker, trajectory

from schemas import keys, seeds
from schemas.ledger import Kind
from schemas.manifest import WorkerState
from schemas.trajectory import Trajectory, row_digest
from storage import audit, control
from storage.memory import MemoryStore
from storage.shards import encode_shard
from trainer.learner import AgenticRLLearner

EVALUATION = "runs/test/evaluations/0123456789ab"
PLAYER = "e-0123456789"


def episodes(group: int, version: int, worker: str = PLAYER) -> list[Trajectory]:
    """What an evaluation of the run plays as its tasks `group`, in the same words as training would."""
    seed = seeds.derive("evaluation.tasks", 7)
    return [
        trajectory(group, s, version=version, worker=worker, seed=seeds.request(seed, group, s, 0, 0)) for s in range(2)
    ]


def open_group(learner: AgenticRLLearner) -> int:
    """A group that the learner still waits for."""
    return learner.progress.low


def trained_by(store: MemoryStore, worker: str, seq: int | None = None) -> list[str | None]:
    rows = [row for index in range(STEPS + 1) for row in read_record(store, index).rows]
    return [
        row.trajectory for row in rows
        if row.kind == Kind.TRAJECTORY and row.worker == worker and (seq is None or row.seq == seq)
    ]  # fmt: skip


def finish(learner: AgenticRLLearner, workers: list[FakeWorker]) -> None:
    turn(learner, workers, STEPS)
    end(learner, workers)


def test_where_they_lie_nobody_reads_them() -> None:
    store = MemoryStore()
    made, workers = start(store)
    turn(made, workers, 1)
    for group in range(made.progress.low, made.progress.low + 4):
        shard = encode_shard(episodes(group, made.progress.version), METADATA)
        store.create(keys.shard(EVALUATION, PLAYER, group), shard)
    finish(made, workers)
    assert trained_by(store, PLAYER) == [] and audit.verify(store, "test").ok


def beside(store: MemoryStore, learner: AgenticRLLearner, workers: list[FakeWorker]) -> tuple[str, int]:
    """In a folder of their own among the stage's shards."""
    store.create(keys.shard(BASE, PLAYER, 0), encode_shard(episodes(open_group(learner), 0), METADATA))
    return PLAYER, 0


def registered(store: MemoryStore, learner: AgenticRLLearner, workers: list[FakeWorker]) -> tuple[str, int]:
    """The same, with the player registered as a worker that has sealed them."""
    state: WorkerState = control.register_worker(store, BASE, worker=PLAYER, host="h", pid=1)
    control.beat(store, BASE, state.model_copy(update={"state": "left", "next_seq": 1}))
    return beside(store, learner, workers)


def in_turn(store: MemoryStore, learner: AgenticRLLearner, workers: list[FakeWorker]) -> tuple[str, int]:
    """As the next shard of a worker that rolls out, which dies of it."""
    seq = workers[0].writer.next_seq
    store.create(keys.shard(BASE, "w0", seq), encode_shard(episodes(open_group(learner), 0), METADATA))
    workers.pop(0).leave()
    return "w0", seq


def renamed(store: MemoryStore, learner: AgenticRLLearner, workers: list[FakeWorker]) -> tuple[str, int]:
    """The same, with that worker's name in every row."""
    seq = workers[0].writer.next_seq
    store.create(keys.shard(BASE, "w0", seq), encode_shard(episodes(open_group(learner), 0, "w0"), METADATA))
    workers.pop(0).leave()
    return "w0", seq


@pytest.mark.parametrize(
    ("put", "says"),
    [
        (beside, f"{PLAYER} belongs to no registered worker"),
        (registered, "was sampled by another seed than the stage's"),
        (in_turn, f"says that it is of worker {PLAYER}"),
        (renamed, "was sampled by another seed than the stage's"),
    ],
)
def test_put_among_the_stages_shards_they_are_not_trained_and_the_audit_names_them(
    put: Callable[..., tuple[str, int]], says: str
) -> None:
    store = MemoryStore()
    made, workers = start(store)
    turn(made, workers, 1)
    worker, seq = put(store, made, workers)
    finish(made, workers)
    assert trained_by(store, worker, seq) == []
    trained = [row for index in range(STEPS) for row in read_record(store, index).trained()]
    assert len(trained) == STEPS * made.config.rl.groups_per_batch * made.config.rl.group_size
    found = audit.verify(store, "test")
    assert not found.ok and any(says in text for text in found.violations), found.violations


@pytest.mark.parametrize("worker", [PLAYER, f"../../evaluations/0123456789ab/trajectories/{PLAYER}"])
def test_a_ledger_row_that_names_an_evaluations_shard_is_found(worker: str) -> None:
    store = MemoryStore()
    made, workers = start(store)
    finish(made, workers)
    assert audit.verify(store, "test").ok
    rows = episodes(0, 0)
    store.create(keys.shard(EVALUATION, PLAYER, 0), encode_shard(rows, METADATA))
    place = {"worker": worker, "seq": 0, "row": 0, "row_digest": row_digest(rows[0])}
    edit_record(store, 0, lambda found: [dataclasses.replace(r, **place) if r.position == 0 else r for r in found])
    found = audit.verify(store, "test")
    assert not found.ok
    assert any(f"{keys.shard(BASE, worker, 0)}, of which the ledger names" in text for text in found.violations)
