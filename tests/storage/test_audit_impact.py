"""Impact: what descends from a trajectory, a task or a data file, across warm-ups, child runs and promotions."""

import pytest
from support.audited import STEPS, finished, read_record
from support.protocol import BASE, config, spec

from schemas import keys
from schemas.errors import RequestError
from schemas.manifest import CheckpointManifest, Parent, RunManifest, StageManifest, WeightsRef
from schemas.promotion import Channel, Promotion
from storage.audit_impact import impact
from storage.memory import MemoryStore

START = spec(config()).initial.sha256


@pytest.fixture
def store():
    """A run, a child that started from its last checkpoint, and that child's only checkpoint, promoted."""
    made = MemoryStore("impact")
    finished(made)
    child(made, "child", f"test@{STEPS}", last(made).policy)
    return made


def last(store):
    key = keys.checkpoint_manifest(BASE, STEPS)
    return CheckpointManifest.from_bytes(store.get(key).data, key)


def child(store, name, origin, weights):
    base, initial = keys.rl(name, "0123"), weights.model_copy(update={"origin": origin})
    run = RunManifest(run=name, config={}, config_digest="", seed=0, code="0", python="3", created=0.0)
    document = spec(config(steps=STEPS)).model_copy(update={"run": name, "initial": initial, "tasks_sha256": "other"})
    store.create(keys.run_manifest(name), run.to_bytes())
    store.create(keys.spec(base), document.to_bytes())
    policy = WeightsRef(prefix="p", sha256="c" * 64, origin=f"{name}@2")
    made = last(store).model_copy(update={"step": 2, "version": 2, "policy": policy, "initial": initial})
    store.create(keys.checkpoint_manifest(base, 2), made.to_bytes())
    entry = Promotion(ref=f"{name}@2", weights=policy, ledger_head="", report="", previous="", reason="", time=0.0)
    channel = Channel(name="test", channel="production", history=(entry,))
    store.create(keys.channel("test", "production"), channel.to_bytes())


def refs(found, kind="checkpoint"):
    return [a.ref for a in found.artifacts if a.kind == kind]


def test_a_trajectory_is_in_every_later_checkpoint_and_policy(store):
    row = read_record(store, 2).trained()[0]
    found = impact(store, "test", row.trajectory)
    assert (found.kind, found.trained) == ("trajectory", 1)
    assert refs(found) == ["test@4", "child@2"]
    assert refs(found, "policy") == [f"{BASE}/policies/{v:08d}" for v in (3, 4)]
    assert found.channels == ["test/production"]
    assert found.table().num_rows == len(found.artifacts)


def test_a_trajectory_that_was_not_trained_has_no_impact(store):
    found = impact(store, "test", "0-0-3")
    assert (found.trained, found.artifacts, found.channels) == (0, (), [])


def test_a_task_counts_from_its_first_training(store):
    row = read_record(store, 1).trained()[0]
    found = impact(store, "test", f"task:{row.task_id}")
    assert found.trained == sum(r.task_id == row.task_id for i in range(STEPS) for r in read_record(store, i).trained())
    assert refs(found) == ["test@2", "test@4", "child@2"]


@pytest.mark.parametrize("selector", ["data/x.jsonl", "x.jsonl"])
def test_a_task_file_is_in_all_that_its_runs_made(store, selector):
    found = impact(store, "test", selector)
    assert found.trained == STEPS * 4
    assert refs(found) == ["test@2", "test@4", "child@2"]


def test_a_demonstration_file_goes_through_its_warm_up(store):
    digest = "d" * 64
    manifest = StageManifest(
        stage="copy",
        key="k",
        config={},
        inputs=(Parent(kind="data", ref=f"data/{digest}.jsonl", sha256=digest),),
        weights=WeightsRef(prefix="w", sha256=START),
        code="0",
        started=0,
        ended=1,
    )
    store.create(keys.stage_manifest("copy", "k"), manifest.to_bytes())
    initial = WeightsRef(prefix="w", sha256=START, origin="stages/copy-k")
    store.put(keys.spec(BASE), spec(config(steps=STEPS)).model_copy(update={"initial": initial}).to_bytes())
    found = impact(store, "test", digest[:8])
    assert (found.kind, found.trained) == ("data", 0)
    assert refs(found, "warm-up") == ["stages/copy-k"]
    assert refs(found) == ["test@2", "test@4", "child@2"]


@pytest.mark.parametrize("selector", ["9-9-9", "task:nobody", "nothing.jsonl"])
def test_what_a_run_does_not_know_is_refused(store, selector):
    with pytest.raises(RequestError, match=selector.removeprefix("task:")):
        impact(store, "test", selector)
