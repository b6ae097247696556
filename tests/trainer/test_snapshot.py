"""Snapshots: what comes back is the same to the bit and trains on alike; damage is named."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.protocol import config, trajectory
from support.tiny import TINY, lively

from models.pure import init_params
from models.weights import params_digest
from schemas import keys
from schemas.errors import RunStopped
from schemas.manifest import CheckpointManifest, WeightsRef
from storage.memory import MemoryStore
from trainer import snapshot
from trainer.assembler import Row
from trainer.jax_updater import JaxUpdater

BASE = "runs/test/rl-0123"
SMALL = dataclasses.replace(TINY, num_hidden_layers=1)
RUN = config(rollout={"max_length": 8}, optimizer={"learning_rate": 0.01, "schedule": "linear"})


def updater(store):
    return JaxUpdater(store, BASE, RUN, SMALL, lively(init_params(SMALL, 0)))


def batch(group=0):
    rows = tuple(Row(("w", 0, i), trajectory(group, i), f"d{i}") for i in range(3))
    return rows, (0.5, -1.0, 1.0)


def manifest(made, step=1):
    prefix, files, optimizer = made.save(step, "L1")
    ref = WeightsRef(prefix="p", sha256="0" * 64)
    return CheckpointManifest(
        step=step, version=step, learner="L1", prefix=prefix, files=files, params_sha256=made.params_digest(),
        optimizer_sha256=optimizer, prng="", cursor={}, workers=0, low=0, limit=0, ended=(), admitted={}, recorded=(),
        unreadable=(), empty_steps=0, dispositions={}, ledger_index=0, ledger_head="", parent=None, initial=ref,
        policy=ref, config_digest="", code="", numerics=made.numerics(),
    )  # fmt: skip


@pytest.fixture(scope="module")
def saved():
    """A learner after one step, its store, its checkpoint, and its digest after a second step."""
    store = MemoryStore()
    made = updater(store)
    figures = made.update(*batch())
    checkpoint = manifest(made)
    at = made.params_digest()
    made.update(*batch(1))
    return store, checkpoint, figures, at, made.params_digest(), made.probe()


def test_a_restored_learner_goes_on_to_the_same_bytes(saved):
    store, checkpoint, _, at, later, probe = saved
    other = updater(store)
    other.load(checkpoint)
    assert other.params_digest() == at == checkpoint.params_sha256
    other.update(*batch(1))
    assert other.params_digest() == later
    assert other.probe() == probe


def test_files_lie_under_the_learner_s_own_folder(saved):
    store, checkpoint, *_ = saved
    assert checkpoint.prefix == keys.checkpoint_files(BASE, 1, "L1")
    assert [k.removeprefix(f"{checkpoint.prefix}/") for k in store.list(checkpoint.prefix)] == sorted(checkpoint.files)


def test_an_update_tells_its_figures(saved):
    figures = saved[2]
    assert {"loss", "grad_norm", "clip_fraction", "entropy", "mismatch_kl", "ratio", "ratio_max"} <= figures.keys()
    assert all(map(np.isfinite, figures.values()))


def test_the_probe_is_of_raw_log_probs(saved):
    probe = saved[5]
    assert len(probe.logprobs) == len(probe.tokens) - 1
    assert max(probe.logprobs) < 0


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_a_damaged_file_is_named(saved, damage):
    store, checkpoint, *_ = saved
    name = sorted(checkpoint.files)[0]
    key = f"{checkpoint.prefix}/{name}"
    whole = store.get(key).data
    store.delete(key) if damage == "gone" else store.put(key, whole + b"x")
    try:
        with pytest.raises(RunStopped, match=damage) as caught:
            updater(store).load(checkpoint)
        assert key in str(caught.value)
    finally:
        store.put(key, whole)


@pytest.mark.parametrize("field", ["params_sha256", "optimizer_sha256"])
def test_a_manifest_of_another_state_is_refused(saved, field):
    store, checkpoint, *_ = saved
    with pytest.raises(RunStopped, match="not the one that its manifest names"):
        updater(store).load(checkpoint.model_copy(update={field: "0" * 64}))


@pytest.mark.parametrize("name", ["../outside", "/outside"])
def test_a_file_name_can_t_lead_outside(saved, name):
    store, checkpoint, *_ = saved
    with pytest.raises(RunStopped, match="names a file outside it"):
        updater(store).load(checkpoint.model_copy(update={"files": {name: "0" * 64}}))


def test_an_update_that_is_not_finite_stops_the_run(saved):
    rows, advantages = batch()
    with pytest.raises(RunStopped, match="the update is not finite"):
        updater(saved[0]).update(rows, (float("nan"), *advantages[1:]))


def test_a_figure_that_no_checkpoint_can_hold_stops_the_run(tmp_path):
    """The loss of a user's own may be finite and what it says of itself may not."""
    (tmp_path / "vague.py").write_text(
        "from trainer.losses import ppo\n\n\ndef loss(terms, settings):\n"
        "    found = ppo(terms, settings)\n    return found._replace(clipped=found.clipped * float('nan'))\n"
    )
    run = config(rollout={"max_length": 8}, optimizer={"learning_rate": 0.01}, loss={"policy": "vague:loss"})
    made = JaxUpdater(MemoryStore(), BASE, run, SMALL, lively(init_params(SMALL, 0)), str(tmp_path))
    with pytest.raises(RunStopped, match=r"the update is not finite .*'clip_fraction': nan"):
        made.update(*batch())


def test_the_optimizer_s_digest_sees_every_array():
    made = updater(MemoryStore())
    state = made._state
    leaves, shape = jax.tree.flatten(state.optimizer)
    digests = {snapshot.optimizer_digest(state)}
    for i, leaf in enumerate(leaves):
        moved = [*leaves[:i], jnp.asarray(leaf) + 1, *leaves[i + 1 :]]
        digests.add(snapshot.optimizer_digest(state._replace(optimizer=jax.tree.unflatten(shape, moved))))
    assert len(digests) == len(leaves) + 1
    assert params_digest(state.params) == made.params_digest()
