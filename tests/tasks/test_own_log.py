"""A run's own log as the data of a warm-up: what is selected, what is trained, and what audits say of it."""

import argparse
import asyncio
import json
import shutil
from pathlib import Path

import pytest
from support.kept import write_run
from support.real_stage import lay_out, small, train
from support.rollouts import BASE

from models.tokenizer import ByteTokenizer
from schemas import keys
from schemas.config import Model
from schemas.digest import sha256
from schemas.errors import AuditViolation, LogDamaged, RequestError
from schemas.manifest import CheckpointManifest, RunManifest, StageManifest, WarmUpSpec, WeightsRef
from schemas.optimizer import Optimizer
from schemas.selection import Selection
from schemas.trajectory import row_digest
from schemas.warm_ups import DPO, SFT, RunPairs, RunSamples
from storage import audit
from storage.audit_impact import impact
from storage.folder import FolderStore
from storage.open import open_store
from storage.selected import read_selected
from tasks.ancestors import trained_on
from tasks.request import load
from tasks.selecting import select, selected_file
from tasks.warm_up import data_inputs
from trainer import warm_up
from trainer.own_log import taken_examples, taken_pairs

STEPS = 3
COMMON = {"name": "again", "steps": 2, "batch_size": 2, "max_length": 48, "optimizer": Optimizer(learning_rate=0.01)}
SAMPLES = SFT(**COMMON, data=RunSamples(run="test"))
PAIRS = DPO(**COMMON, kind="dpo", data=RunPairs(run="test"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a run `test` that real workers and the real learner have finished. Not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    store = FolderStore(folder / "root")
    store.probe()
    run = small(steps=STEPS, checkpoint_every=STEPS)
    write_run(store, run)
    asyncio.run(train(store, lay_out(store, folder, run), workers=1))
    return folder / "root"


@pytest.fixture
def store(finished: Path, tmp_path: Path) -> FolderStore:
    """A copy that may be changed."""
    return FolderStore(Path(shutil.copytree(finished, tmp_path / "root")))


def take(store, stage) -> Selection:
    return select(store, "b", stage, stage.data)


def test_samples_are_the_good_rows_of_the_log_each_once_and_always_the_same(store):
    found = take(store, SAMPLES)
    rows = read_selected(store, BASE, found.chosen)
    assert rows and all(row.reward == 1.0 for row in rows)
    assert [row_digest(row) for row in rows] == [one.row_digest for one in found.chosen]
    assert len({row.group for row in rows}) == len({row.tokens for row in rows}) == len(rows)
    assert found.chosen[0].prompt and found.tokenizer == ByteTokenizer().digest
    assert found.to_bytes() == take(store, SAMPLES).to_bytes()
    assert audit.verify(store, "test").ok


def test_pairs_are_of_one_group_with_the_better_first(store):
    found = take(store, PAIRS)
    assert found.chosen and [c.group for c in found.chosen] == [r.group for r in found.rejected]
    assert all(c.reward > r.reward for c, r in zip(found.chosen, found.rejected, strict=True))


def test_steps_bound_what_is_taken_and_the_ledger_head_is_that_of_the_last(store):
    early, late = (
        take(store, SAMPLES.model_copy(update={"data": RunSamples(run="test", min_reward=0.0, **steps)}))
        for steps in ({"end_step": 1}, {"first_step": 1})
    )
    assert {one.step for one in early.chosen} == {0} and 0 not in {one.step for one in late.chosen}
    assert early.ledger_head != late.ledger_head == take(store, PAIRS).ledger_head


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"run": "nobody"}, "warm_up.again.data names run `nobody`, which is not in"),
        ({"run": "b"}, "names run `b` itself"),
        ({"run": "test", "end_step": 99}, "wants steps 0 to 99 of run test, whose ledger has 3"),
        ({"run": "test", "first_step": 2, "end_step": 2}, "wants steps 2 to 2"),
    ],
)
def test_a_log_that_is_not_there_is_refused(store, data, sentence):
    with pytest.raises(RequestError, match=sentence):
        take(store, SAMPLES.model_copy(update={"data": RunSamples(**data)}))


def test_nothing_to_learn_and_what_is_too_long_are_refused(store, monkeypatch):
    with pytest.raises(RequestError, match=r"has \d+ tokens, more than max_length = 4: raise it"):
        take(store, SAMPLES.model_copy(update={"max_length": 4}))
    monkeypatch.setattr("tasks.selecting.ENDED_WELL", ("nobody",))
    with pytest.raises(RequestError, match="finds nothing to learn from in steps 0 to 3 of run test"):
        take(store, SAMPLES)


def test_a_selection_needs_nothing_that_expires(store):
    before = take(store, PAIRS)
    for key in [k for part in ("policies", "checkpoints") for k in store.list(f"{BASE}/{part}/")]:
        if not key.endswith("/manifest.json"):
            store.delete(key)
    assert take(store, PAIRS) == before
    assert taken_pairs(store, before, ByteTokenizer())


def test_a_removed_run_is_refused(store):
    store.delete(keys.run_manifest("test"))
    with pytest.raises(RequestError, match="names run `test`, which is not in"):
        take(store, SAMPLES)


def child(store, stage, train=warm_up.main):
    """Train a warm-up on a selection from `test`, and give run `b` a checkpoint that started from it."""
    file = selected_file(store, "b", stage, stage.data)
    store.put(file.key, file.data)
    run = small().model_copy(update={"warm_up": (stage,), "model": Model(path="test@3")})
    initial = WeightsRef.model_validate(checkpoint_of(store).policy.model_dump())
    spec = WarmUpSpec(
        stage=stage.name, key="k", config=run.model_dump(mode="json"), seed=3, initial=initial, data=file.key,
        data_sha256=file.sha256, inputs=tuple(data_inputs(file)),
    )  # fmt: skip
    store.put("spec.json", spec.to_bytes())
    assert train(argparse.Namespace(root=store.url, spec="spec.json")) == 0
    key = keys.stage_manifest(stage.name, "k")
    made = StageManifest.from_bytes(store.get(key).data, key).weights
    leave_run(store, run, made, file.key)
    return made, Selection.from_bytes(file.data, file.key)


def no_training(args):
    """Leaves a manifest as if it had been trained."""
    store = open_store(args.root)
    spec = WarmUpSpec.from_bytes(store.get(args.spec).data, args.spec)
    weights = WeightsRef(prefix="w", sha256="c" * 64, origin=keys.stage(spec.stage, spec.key))
    manifest = StageManifest(
        stage=spec.stage, key=spec.key, config={}, inputs=spec.inputs, weights=weights, code="0", started=0, ended=1
    )
    store.create(keys.stage_manifest(spec.stage, spec.key), manifest.to_bytes())
    return 0


def checkpoint_of(store, base=BASE):
    key = keys.checkpoint_manifest(base, STEPS)
    return CheckpointManifest.from_bytes(store.get(key).data, key)


def leave_run(store, run, weights, data):
    """Run `b`: an RL stage that started from the weights and has a checkpoint at step 0."""
    base = keys.rl("b", "0123")
    spec = json.loads(store.get(keys.spec(BASE)).data) | {"run": "b", "initial": weights.model_dump()}
    policy = {"prefix": "p", "sha256": "b" * 64, "origin": "b@0"}
    manifest = json.loads(store.get(keys.checkpoint_manifest(BASE, STEPS)).data)
    manifest |= {"step": 0, "version": 0, "ledger_head": "", "ledger_index": 0, "dispositions": {}, "policy": policy}
    record = RunManifest(
        run="b", config=run.model_dump(mode="json"), config_digest="", seed=0, code="0", python="3", created=0.0,
        rl_keys=("0123",), data={"warm_up.again": data}, stages={"again": "k"},
    )  # fmt: skip
    store.create(keys.spec(base), json.dumps(spec).encode())
    store.create(keys.checkpoint_manifest(base, 0), json.dumps(manifest | {"initial": weights.model_dump()}).encode())
    store.create(keys.run_manifest("b"), record.to_bytes())


def test_the_ids_that_were_sampled_are_trained_and_the_lineage_shows_them(store):
    made, taken = child(store, SAMPLES)
    rows = read_selected(store, BASE, taken.chosen)
    assert taken_examples(store, taken, ByteTokenizer()) == [(list(r.tokens), list(r.mask)) for r in rows]
    lineage = audit.checkpoint(store, "b")
    (stage,) = lineage.warm_ups
    assert stage.weights_sha256 == made.sha256 and stage.taken.selection == taken
    assert lineage.to_json()["warm_ups"][0]["taken"]["ledger_head"] == taken.ledger_head
    assert [p.sha256 for p in lineage.data()].count(taken.tasks_sha256) == 1
    (seen,) = trained_on(store, made)[:1]
    assert (seen.key, seen.kind) == (stage.taken.document.ref, "warm_up")
    assert not lineage.outside and audit.verify(store, "test").ok and not audit.verify(store, "b").taken


def test_a_trajectory_of_one_run_is_found_in_the_warm_up_of_another(store):
    made, taken = child(store, PAIRS)
    sides = [read_selected(store, BASE, side) for side in (taken.chosen, taken.rejected)]
    expected = [tuple((list(r.tokens), list(r.mask)) for r in pair) for pair in zip(*sides, strict=True)]
    assert taken_pairs(store, taken, ByteTokenizer()) == expected
    for one in (taken.chosen[0], taken.rejected[0]):
        found = impact(store, "test", one.trajectory)
        assert ("warm-up", "stages/again-k") in [(a.kind, a.ref) for a in found.artifacts]
        assert "b@0" in [a.ref for a in found.artifacts]
        assert impact(store, "test", f"task:{one.task_id}").artifacts[0].weights_sha256 == made.sha256
        life = audit.trajectory(store, "test", one.trajectory)
        assert life.warm_ups == ("stages/again-k",) and "b@0" in [d.checkpoint for d in life.descendants]
    others = {row.id for row in rows_of(store)} - {one.trajectory for one in taken.everything}
    assert audit.trajectory(store, "test", min(others)).warm_ups == ()
    assert "stages/again-k" in [a.ref for a in impact(store, "test", taken.tasks_sha256).artifacts]


def rows_of(store):
    from storage.audit_log import read_log

    return read_log(store, BASE).rows.values()


def test_a_log_that_no_longer_holds_what_was_taken_is_a_violation(store):
    _, taken = child(store, SAMPLES, no_training)
    one = taken.chosen[0]
    key = keys.shard(BASE, one.worker, one.seq)
    whole = store.get(key).data
    store.put(key, whole[:-20])
    assert f"stages/again-k: {key} is truncated or damaged" in audit.verify(store, "b").taken[0]
    store.put(key, whole)
    assert audit.verify(store, "b").taken == ()
    store.delete(keys.ledger(BASE, STEPS - 1))
    store.delete(keys.ledger(BASE, STEPS))
    for part in store.list(f"{BASE}/catalog/"):
        store.delete(part)
    assert "has no record" in audit.verify(store, "b").taken[0]


def test_a_changed_selection_is_a_violation(store):
    _, taken = child(store, SAMPLES, no_training)
    key = next(k for k in store.list("data/") if k.endswith(".json"))
    store.put(key, taken.model_copy(update={"end_step": 1}).to_bytes())
    with pytest.raises(AuditViolation, match="which says what stages/again-k was trained on, was changed"):
        audit.checkpoint(store, "b")
    store.delete(key)
    with pytest.raises(AuditViolation, match="is gone"):
        audit.checkpoint(store, "b")


def test_a_damaged_manifest_of_a_warm_up_is_a_violation(store):
    child(store, SAMPLES, no_training)
    key = next(k for k in store.list("stages/") if k.endswith("/manifest.json"))
    store.put(key, store.get(key).data[:-20])
    (violation,) = audit.verify(store, "b").taken
    assert key in violation


def test_a_shard_that_is_gone_or_another_tokenizer_stops_the_stage(store):
    taken = take(store, SAMPLES)
    with pytest.raises(RequestError, match="was sampled with another tokenizer"):
        taken_examples(store, taken.model_copy(update={"tokenizer": "other"}), ByteTokenizer())
    one = taken.chosen[0]
    store.delete(keys.shard(BASE, one.worker, one.seq))
    with pytest.raises(LogDamaged, match="is missing: was its run removed"):
        taken_examples(store, taken, ByteTokenizer())


def test_a_run_keeps_its_selection_while_it_asks_for_the_same(store):
    earlier = take(store, SAMPLES).model_copy(update={"ledger_head": "as it was", "end_step": 1})
    data = earlier.to_bytes()
    store.put(keys.data(sha256(data), "json"), data)
    record = RunManifest(
        run="b", config={}, config_digest="", seed=0, code="0", python="3", created=0.0,
        data={"warm_up.again": keys.data(sha256(data), "json")},
    )  # fmt: skip
    store.create(keys.run_manifest("b"), record.to_bytes())
    assert selected_file(store, "b", SAMPLES, SAMPLES.data).data == data
    assert selected_file(store, "b", SAMPLES, RunSamples(run="test", per_group=2)).data != data
    store.delete(keys.run_manifest("test"))
    assert selected_file(store, "b", SAMPLES, SAMPLES.data).data == data


def test_tasks_of_the_log_may_not_be_measured(store, project):
    text = (project / "small.toml").read_text().replace('data = "demos.jsonl"', 'data = { run = "test" }')
    (project / "small.toml").write_text(text.replace("steps = 2\n", "steps = 2\nmax_length = 48\n"))
    assert load(str(project / "small.toml"), root=store.url, run="b").data["warm_up.habit"].suffix == "json"
    task = take(store, SAMPLES).chosen[0].task_id
    held = [json.loads(line) for line in (project / "heldout.jsonl").read_text().splitlines()]
    held[0]["id"] = task
    (project / "heldout.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held))
    with pytest.raises(RequestError, match=rf"share the task id `{task}` .*trajectory \d+-\d+-\d+ of run test"):
        load(str(project / "small.toml"), root=store.url, run="b")
