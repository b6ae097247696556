"""A whole RL stage that a program plays, which branches and rewrites: real workers, engine and learner, and audits."""

import asyncio
from functools import partial
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np
import pytest
from support.kept import write_run
from support.real_stage import lay_out, small, train
from support.rollouts import BASE, sealed
from support.turning import records

from models.config import DecoderConfig
from models.logprobs import token_logprobs
from models.pure import Params
from models.stored import load_weights
from schemas import keys
from schemas.manifest import PolicyManifest
from schemas.trajectory import Trajectory
from storage import audit
from storage.folder import FolderStore
from tasks import replay
from trainer.step import positions

LENGTH = 128
PROGRAM = """
import asyncio
import openai
from rollout.programs import ProgramEnvironment

class Branching(ProgramEnvironment):
    async def act(self, address):
        client = openai.AsyncOpenAI(base_url=address.base_url, api_key=address.api_key)

        async def ask(*messages):
            told = await client.chat.completions.create(model=address.model, messages=list(messages))
            return told.choices[0].message.model_dump(exclude_none=True)

        user = lambda text: {"role": "user", "content": text}
        first = await ask(user(self.task.prompt))
        await asyncio.gather(*[ask(user(self.task.prompt), first, user(more)) for more in "abc"])
        await ask(user("anew"))
"""


@pytest.mark.slow
def test_segments_are_trained_as_they_were_sampled(tmp_path: Path) -> None:
    (tmp_path / "branching.py").write_text(PROGRAM)
    rollout = {"max_length": LENGTH, "max_tokens_per_turn": 6}
    run = small(rollout, steps=3, row_tokens=160, micro_batch=2, checkpoint_every=3)
    named = {"environment": "branching:Branching", "max_turns": 5, "tools": ()}
    run = run.model_copy(update={"environment": run.environment.model_copy(update=named)})
    store = FolderStore(tmp_path / "root")
    write_run(store, run)
    asyncio.run(train(store, lay_out(store, tmp_path, run), workers=1))
    found = audit.verify(store, "test")
    assert found.ok, found
    rows = sealed(store)
    assert all(r.status == "succeeded" and len(r.turns) == 5 and len(r.segment_starts) == 4 for r in rows), rows[0]
    assert sum(_check(store, row) for row in rows) > 20
    figures = [record.metadata.figures for record in records(store)]
    first = next(f["mismatch_kl"] for f in figures if "mismatch_kl" in f)  # later ones are of policies that have moved
    assert first < 1e-4, figures
    again = replay.replay(store, "test", None, from_start=False, on_event=lambda _: None)
    assert again["bitwise"] and again["rows"] > 0


def _check(store: FolderStore, row: Trajectory) -> int:
    """Whether each segment's log-probs are those of a stream of its own; how many of one policy there were."""
    if len(set(row.versions)) > 1:
        return 0
    key = keys.policy_manifest(BASE, row.versions[0])
    config, params, _ = load_weights(store, PolicyManifest.from_bytes(store.get(key).data, key).weights)
    spans = [np.s_[start:end] for start, end in pairwise((*row.segment_starts, len(row.tokens)))]
    tokens, valid = np.zeros((2, len(spans), LENGTH), np.int32)
    for line, span in enumerate(spans):
        size = span.stop - span.start
        tokens[line, :size], valid[line, :size] = row.tokens[span], 1
    found = np.asarray(_logprobs(config, params, tokens, valid))
    for line, span in enumerate(spans):
        mask = np.asarray(row.mask[span])
        told = np.asarray(row.logprobs[span])[mask]
        np.testing.assert_allclose(found[line, : len(mask)][mask], told, atol=2e-4)
    return len(spans)


@partial(jax.jit, static_argnums=0)
def _logprobs(config: DecoderConfig, params: Params, tokens: jax.Array, valid: jax.Array) -> jax.Array:
    return token_logprobs(config, params, tokens, positions(tokens), valid)[0]
