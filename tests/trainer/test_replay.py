"""Replaying a checkpoint: the recorded batches give its parameters, and nothing else passes for them."""

import asyncio

import pytest
from support.audited import STEPS, edit_metadata, edit_record, finished, read_record
from support.protocol import BASE, NUMERICS, FakeUpdater, config, spec
from support.real_stage import lay_out, small, train

from schemas import keys
from schemas.errors import AuditViolation, RequestError, RunStopped
from schemas.lora import LoRA
from schemas.manifest import CheckpointManifest, PolicyManifest, Probe
from storage.folder import FolderStore
from storage.memory import MemoryStore
from storage.shards import decode_shard, encode_shard
from tasks import replay as task
from tasks.children import Outcome
from trainer.replay_process import replay_checkpoint


@pytest.fixture
def store():
    made = MemoryStore("replay")
    finished(made)
    return made


def again(store, step=STEPS, updater=None, **options):
    document = spec(config(steps=STEPS))
    return replay_checkpoint(
        store, document, BASE, step, updater or FakeUpdater(store), report=lambda *_, **__: None, **options
    )


@pytest.mark.parametrize(("step", "from_start", "start"), [(2, False, 0), (4, False, 2), (4, True, 0)])
def test_a_checkpoint_is_replayed_to_the_bit(store, step, from_start, start):
    before = {key: store.get(key) for key in store.list("")}
    found = again(store, step, from_start=from_start)
    assert (found.bitwise, found.same_numerics, found.gap) == (True, True, None)
    assert (found.start, found.records, found.rows) == (start, step - start, (step - start) * 4)
    assert found.found == found.expected
    assert {key: store.get(key) for key in store.list("")} == before


def change_manifest(store, step, **changes):
    key = keys.checkpoint_manifest(BASE, step)
    store.put(key, CheckpointManifest.from_bytes(store.get(key).data, key).model_copy(update=changes).to_bytes())


def test_other_parameters_are_a_violation(store):
    change_manifest(store, 4, params_sha256="f" * 64)
    with pytest.raises(AuditViolation, match="test@4 from step 2 gave other parameters"):
        again(store)


def test_another_optimizer_state_is_a_violation(store):
    change_manifest(store, 4, optimizer_sha256="f" * 64)
    with pytest.raises(AuditViolation, match="gave its parameters, but another optimizer state"):
        again(store)


@pytest.mark.parametrize(("off", "message"), [(0.0, ""), (1e-5, ""), (0.1, "more than 0.001")])
def test_another_environment_is_held_to_the_probe(store, off, message):
    change_manifest(store, 4, params_sha256="f" * 64)
    key = keys.policy_manifest(BASE, 4)
    policy = PolicyManifest.from_bytes(store.get(key).data, key)
    probe = Probe(tokens=(1, 2), logprobs=(-1.0 + off,))
    store.put(key, policy.model_copy(update={"probe": probe}).to_bytes())
    updater = FakeUpdater(store)
    updater.environment = NUMERICS.model_copy(update={"cores": 9})
    if message:
        with pytest.raises(AuditViolation, match=message):
            again(store, updater=updater)
    else:
        found = again(store, updater=updater)
        assert (found.bitwise, found.same_numerics, found.gap) == (False, False, pytest.approx(off))


def test_a_changed_record_is_a_violation(store):
    edit_record(store, 3, lambda rows: rows[:1])
    with pytest.raises(AuditViolation, match="does not lead to the head"):
        again(store)
    edit_metadata(store, 2, learner="somebody else")
    with pytest.raises(AuditViolation, match="hash chain broken"):
        again(store)


def test_a_changed_shard_is_a_violation(store):
    row = read_record(store, 3).trained()[0]
    key = keys.shard(BASE, row.worker, row.seq)
    metadata, rows = decode_shard(store.get(key).data)
    store.put(key, encode_shard(rows[::-1], metadata))
    with pytest.raises(AuditViolation, match="not the one that was trained"):
        again(store)


def test_an_unknown_checkpoint_is_refused(store):
    with pytest.raises(RequestError, match="no checkpoint test@3"):
        again(store, 3)


PACKED = {"row_tokens": 100, "micro_batch": 1, "mini_batches": 2, "max_staleness": 3, "remat": True}
PACKED |= {"loss": {"correction": "truncated"}}


ALONE = {"group_size": 1, "groups_per_batch": 4, "loss": {"algorithm": "ppo"}}


ADAPTERS = {"lora": LoRA(rank=2)}
CASES = [
    pytest.param({}, {}, id="plain"),
    pytest.param(PACKED, {}, id="packed, two updates a step"),
    pytest.param(ALONE, {}, id="with a critic"),
    pytest.param({}, ADAPTERS, id="adapters alone", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("settings", "beside"), CASES)
def test_a_real_checkpoint_is_replayed_in_a_process_of_its_own(tmp_path, settings, beside):
    store = FolderStore(tmp_path / "store")
    run = small(steps=3, checkpoint_every=2, **settings).model_copy(update=beside)
    asyncio.run(train(store, lay_out(store, tmp_path, run), 1))
    events = []
    found = task.replay(store, "test", None, from_start=False, on_event=events.append)
    assert (found["checkpoint"], found["start"], found["records"]) == ("test@3", 2, 1)
    assert found["bitwise"] and found["optimizer_bitwise"] and found["rows"] > 0
    assert [e["step"] for e in events if e["event"] == "replayed"] == [3]


@pytest.mark.parametrize(("code", "error"), [(3, AuditViolation), (2, RequestError), (1, RunStopped)])
def test_how_the_process_ends_is_how_the_audit_ends(tmp_path, monkeypatch, code, error):
    store = FolderStore(tmp_path)
    finished(store)

    def child(command, on_event, **_):
        on_event({"event": "error", "message": "so it is", "exit_code": code})
        return Outcome(code, "so it is", refused=code == 2)

    monkeypatch.setattr(task, "run_child", child)
    with pytest.raises(error, match="so it is"):
        task.replay(store, "test", STEPS, from_start=False, on_event=lambda event: None)
