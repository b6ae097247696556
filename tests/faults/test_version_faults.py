"""Faults that others' users reported of versions: old weights served as new, staleness counted wrong.

Each test names a public report. `docs/faults.md` is the whole table.
"""

import asyncio

import numpy as np
import pytest
from support.protocol import BASE, FakeUpdater, FakeWorker, config, learner, spec, trajectory
from support.rollouts import load, publish, stage
from support.turning import drive, finish, records

from rollout.engine import Request, Sampling
from rollout.policy import PolicyFollower
from rollout.probe import Prover
from rollout.scripted import ScriptedEngine
from schemas import keys
from schemas.ledger import Disposition
from schemas.manifest import PolicyManifest, Window
from schemas.trajectory import row_digest
from storage import audit, control
from storage.memory import MemoryStore
from trainer.assembler import Row


class WatchedStore(MemoryStore):
    """Keeps every window that was ever written."""

    def __init__(self):
        super().__init__()
        self.windows = []

    def swap(self, key, data, generation):
        if key == keys.window(BASE):
            self.windows.append(Window.from_bytes(data, key))
        return super().swap(key, data, generation)


def begin(store, run, name="L1"):
    made = learner(store, run, name)
    made.recover()
    return made


def policy(store, version):
    key = keys.policy_manifest(BASE, version)
    return PolicyManifest.from_bytes(store.get(key).data, key)


def test_the_first_rollout_after_a_resume_is_of_the_restored_weights():
    """Workers that began before the restore sampled the base model under a fresh label (huggingface/trl#5293)."""
    store, run = MemoryStore(), config(steps=6, checkpoint_every=2)
    made, worker = begin(store, run), FakeWorker(store, run)
    drive(made, [worker], 3)
    again = learner(store, run, "L2")
    before = control.read_window(store, BASE)[0]
    assert policy(store, before.version).weights.sha256 == made.updater.params_digest()
    again.recover()
    window = control.read_window(store, BASE)[0]
    assert window.version == again.progress.version == 3
    assert policy(store, 3).weights.sha256 == again.updater.params_digest()


def test_without_staleness_nothing_starts_before_the_update_that_it_follows():
    """Staleness 0 let a batch start one update early and trained other than a plain loop (verl-project/verl#4449)."""
    store, run = WatchedStore(), config(steps=5, max_staleness=0)
    made, worker = begin(store, run), FakeWorker(store, run)
    drive(made, [worker], 5)
    opened = [(w.step, w.version, w.limit) for w in store.windows]
    assert opened == [(step, step, 2 * min(step + 1, 5)) for step in range(6)]
    plain, half = FakeUpdater(MemoryStore()), float(np.float32(0.5 / (0.5 + 1e-6)))
    for step in range(5):
        played = [trajectory(2 * step + i // 2, i % 2, version=step, worker="w0") for i in range(4)]
        plain.update(tuple(Row(("w0", 0, 0), row, row_digest(row)) for row in played), (-half, half) * 2)
        assert policy(store, step + 1).weights.sha256 == plain.params_digest()


async def test_a_worker_waits_for_the_policy_that_the_window_names():
    """Staleness 0 was one step off where play went on with the policy before (verl-project/verl#6780)."""
    store, _ = stage(config())
    publish(store, 1)
    engine = ScriptedEngine(lambda stream, seed, version: [5], version=0)
    follower = PolicyFollower(store, BASE, engine, load, Prover(engine, 1e-3), drain=False, news=lambda: None)
    assert not await follower.follow(1, in_flight=0)
    await follower.close()
    assert await follower.follow(1, in_flight=0) and engine.version == 1


@pytest.mark.parametrize("version", [0, 5, 50])
def test_resuming_inflates_no_capacity(version):
    """The capacity for rollouts grew by version x batch after a recovery (inclusionAI/AReaL#1345)."""
    store, run = MemoryStore(), config(steps=60, groups_per_batch=1, max_staleness=2, checkpoint_every=4)
    made, worker = begin(store, run), FakeWorker(store, run)
    drive(made, [worker], version)
    again = begin(store, run, "L2")
    window = control.read_window(store, BASE)[0]
    assert len([g for g in range(window.low, window.limit) if g not in window.ended]) == 3
    assert window.limit - again.progress.ended_count == 3


def test_a_restarted_learner_never_serves_an_older_policy():
    """A restarted trainer served step 0 again; all rollouts were stale and it hung (marin-community/marin#1829)."""
    store, run = WatchedStore(), config(steps=6, checkpoint_every=100)
    made, worker = begin(store, run), FakeWorker(store, run)
    for step in range(1, 7):
        drive(made, [worker], step)
        made = begin(store, run, f"L{step}")
    versions = [window.version for window in store.windows]
    assert versions == sorted(versions) and versions[-1] == 6


def test_rows_of_a_policy_that_the_run_has_not_reached_are_turned_away():
    """A restored trainer trained what a dead attempt had left in storage (marin-community/marin#1711)."""
    store, run = MemoryStore("test"), config(steps=4, groups_per_batch=1, max_staleness=1)
    store.create(keys.spec(BASE), spec(run).to_bytes())
    made, worker, dead = begin(store, run), FakeWorker(store, run), FakeWorker(store, run, "dead")
    for sample in range(2):
        dead.writer.add(trajectory(0, sample, attempt=3, version=9, worker="dead"))
        dead.writer.add(trajectory(3, sample, attempt=3, version=0, worker="dead"))
    dead.writer.seal()
    drive(made, [worker], 4)
    finish(made, [worker, dead])
    ends = {r.trajectory: (r.disposition, r.reason) for record in records(store) for r in record.rows if r.trajectory}
    assert ends["0-0-3"] == (Disposition.SUPERSEDED, "policy 9 sampled it, which this run had not reached")
    assert ends["3-0-3"][0] == Disposition.STALE and "steps old" in ends["3-0-3"][1]
    assert ends["0-0-0"][0] == Disposition.TRAINED
    assert audit.verify(store, "test").ok


def test_versions_count_updates_and_not_publications():
    """The version counted transfers of weights, one for each bucket, and not updates (Tencent-Hunyuan/UniRL#324)."""
    store, run = (
        MemoryStore(),
        config(steps=6, groups_per_batch=1, max_staleness=2, publish_every=3, checkpoint_every=6),
    )
    made, worker = begin(store, run), FakeWorker(store, run)
    drive(made, [worker], 6)
    published = [v for v in range(7) if store.head(keys.policy_manifest(BASE, v)) is not None]
    assert published == [0, 3, 6]
    lags = [max(r.staleness for r in record.trained()) for record in records(store)]
    assert lags == [0, 1, 2, 0, 1, 2] and made.updater.updates == 6


async def test_an_update_during_a_turn_does_not_make_its_tokens_younger():
    """The version was stamped when a turn ended, so that staleness was counted too low (rllm-org/rllm#622)."""
    engine = ScriptedEngine(lambda stream, seed, version: [5, 6, 7], version=0, seconds=0.01)
    turn = asyncio.ensure_future(engine.generate(Request("s", (1, 2), Sampling(8, 1.0, ()), 0)))
    await asyncio.sleep(0)
    await engine.update_weights(None, 1)
    assert (await turn).versions == (0, 0, 0)
