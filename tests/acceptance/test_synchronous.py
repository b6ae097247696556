"""`max_staleness = 0` is the synchronous algorithm: a plain loop around engine, collector and updater does the same."""

import asyncio
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from support.real_stage import SEED, SHAPE, lay_out, small, talkative, train
from support.rollouts import BASE, TASKS, TOKENIZER, sealed

from models.chat import chat_format
from models.config import DecoderConfig
from models.logprobs import token_logprobs
from models.pure import Params
from models.stored import load_weights
from models.tokenizer import Tokenizer
from rollout.cast import load_cast
from rollout.collect import TrajectoryCollectEngine
from rollout.episode import Job
from rollout.jax_engine import JaxEngine
from schemas import keys, seeds
from schemas.config import Run
from schemas.manifest import CheckpointManifest, PolicyManifest, WeightsRef
from schemas.trajectory import Trajectory
from storage.ledger import read_entry
from storage.memory import MemoryStore
from storage.objects import ObjectStore
from trainer.assembler import Row
from trainer.jax_updater import JaxUpdater

STEPS, GROUPS, SIZE = 5, 2, 4


async def plain_loop(
    run: Run, folder: Path, recorded: dict[str, Trajectory]
) -> tuple[list[Trajectory], list[str], list[Params]]:
    """Sample a batch, train on it, take the new weights, and again; trains on the recorded batch.

    Returns what was sampled, the parameters' digest after each step, and the parameters before each.
    """
    updater = JaxUpdater(MemoryStore("plain"), "plain", run, SHAPE, talkative())
    engine = JaxEngine(SHAPE, talkative(), version=0, slots=3, max_length=run.rollout.max_length, decode_steps=1)
    cast = load_cast(run.environment, str(folder))
    collector = TrajectoryCollectEngine(
        engine, chat_format(TOKENIZER, cast.tool_specs), cast, run,
        run="test", seed=SEED, worker="plain", temperature=run.rollout.temperature,
    )  # fmt: skip
    sampled, digests, policies = [], [], []
    for step in range(STEPS):
        policies.append(jax.tree.map(np.array, updater.params))
        groups = [await play(collector, group) for group in range(step * GROUPS, (step + 1) * GROUPS)]
        sampled += [row for group in groups for row in group]
        advantages = [a for group in groups for a in grpo([recorded[r.id].reward for r in group])]
        batch = [Row(("w", 0, 0), recorded[r.id], "") for group in groups for r in group]
        updater.update(tuple(batch), tuple(advantages))
        digests.append(updater.params_digest())
        await engine.update_weights(jax.tree.map(np.array, updater.params), step + 1)
    await engine.close()
    return sampled, digests, policies


async def play(collector: TrajectoryCollectEngine, group: int) -> list[Trajectory]:
    task = TASKS[seeds.task_index(SEED, len(TASKS), group)]
    return [await collector.collect(Job(group, sample, 0, task)) for sample in range(SIZE)]


def grpo(rewards: list[float]) -> list[float]:
    centred = np.array(rewards) - np.mean(rewards)
    return [float(np.float32(a)) for a in centred / (np.sqrt(np.mean(centred**2)) + 1e-6)]


_token_logprobs = jax.jit(token_logprobs, static_argnums=0)


def by_the_learner(params: Params, row: Trajectory, length: int) -> np.ndarray:
    """The log-probs that the learner's pass over the row gives its sampled tokens under `params`."""
    tokens, places = np.zeros((1, length), np.int32), np.arange(length)[None]
    tokens[0, : len(row.tokens)] = row.tokens
    logs, _ = _token_logprobs(SHAPE, params, tokens, places, places < len(row.tokens))
    return np.asarray(logs)[0, : len(row.tokens)][np.array(row.mask)]


def trained(store: MemoryStore) -> list[tuple[int, str]]:
    """(version of the step, trajectory) of every trained row, in the order of training."""
    entries = [read_entry(store, BASE, step) for step in range(STEPS)]
    return [(e.record.metadata.version, str(r.trajectory)) for e in entries if e for r in e.record.trained()]


def unhurried(store: ObjectStore, ref: WeightsRef) -> tuple[DecoderConfig, Any, Tokenizer]:
    """Loads weights so slowly that episodes which do not wait for them are played with the policy before."""
    time.sleep(0.5)
    return load_weights(store, ref)


def test_without_staleness_the_pipeline_is_the_plain_loop(tmp_path: Path) -> None:
    run = small(max_staleness=0, steps=STEPS, groups_per_batch=GROUPS, group_size=SIZE, idle_seconds=60.0)
    store = MemoryStore("synchronous")
    spec = lay_out(store, tmp_path, run)
    asyncio.run(train(store, spec, workers=2, load=unhurried))
    rows = {row.id: row for row in sealed(store)}
    order = trained(store)
    assert [v for v, _ in order] == [step for step in range(STEPS) for _ in range(GROUPS * SIZE)]
    assert all(rows[i].versions == (version,) for version, i in order), "a token of another policy was trained"

    sampled, digests, policies = asyncio.run(plain_loop(run, tmp_path, rows))
    for version, i in order:  # whatever an engine says of its version, these weights sampled the row
        found = np.array(rows[i].logprobs)[np.array(rows[i].mask)]
        wanted = by_the_learner(policies[version], rows[i], run.rollout.max_length)
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert [row.id for row in sampled] == [i for _, i in order]
    for row in sampled:
        assert (row.tokens, row.mask, row.seed) == (rows[row.id].tokens, rows[row.id].mask, rows[row.id].seed)
        assert row.reward == rows[row.id].reward and row.status == rows[row.id].status
        np.testing.assert_allclose(row.logprobs, rows[row.id].logprobs, atol=1e-5)
    assert len(set(digests)) == STEPS, "nothing was learned"
    published = [PolicyManifest.from_bytes(store.get(keys.policy_manifest(BASE, v)).data, "p") for v in range(1, 6)]
    assert [p.weights.sha256 for p in published] == digests
    last = keys.checkpoint_manifest(BASE, STEPS)
    assert CheckpointManifest.from_bytes(store.get(last).data, last).params_sha256 == digests[-1]
