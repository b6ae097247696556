"""A whole RL stage in this process with the real model, engine and learner, small enough for two cores."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.config import DecoderConfig
from models.pure import Params, flatten, init_params, nest
from models.stored import load_weights, save_weights
from models.user_modules import environment_sha256
from rollout.policy import LoadWeights
from rollout.worker import Worker
from schemas import keys
from schemas.config import Run
from schemas.data import Task
from schemas.lora import LoRA
from schemas.manifest import RLSpec
from storage.objects import ObjectStore
from support.rollouts import BASE, TASKS, TOKENIZER, config, put_tasks
from trainer.learner import AgenticRLLearner
from trainer.learner_process import build

SHAPE = DecoderConfig(
    vocab_size=263, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, max_position_embeddings=256,
)  # fmt: skip
SEED = 7
WORLD = """
from rollout.environments import StepResult, TaskEnvironment
from schemas.messages import Message

class Twice(TaskEnvironment):
    asked = False

    async def step(self, action):
        if self.asked:
            return StepResult(done=True)
        self.asked = True
        return StepResult([Message("tool", "again")])

def parity(task, messages):
    return float(len(messages[-1].content) % 2)
"""


def small(rollout: dict[str, Any] | None = None, lora: LoRA | None = None, **rl: Any) -> Run:
    """Five steps of two groups of four on the embedded engine: two turns, rewarded for a last one of odd length."""
    sampling = {"engine": "jax", "slots": 6, "max_concurrency": 6, "max_length": 48, "max_tokens_per_turn": 8}
    learning = {"steps": 5, "group_size": 4, "window_seconds": 0, "checkpoint_every": 2}
    return config(
        environment={"environment": "twice:Twice", "reward": "twice:parity"},
        rollout=sampling | {"lease_seconds": 5.0} | (rollout or {}),
        rl=learning | {"optimizer": {"learning_rate": 1e-2}} | rl,
        **({"lora": lora.model_dump()} if lora else {}),
    )


def talkative(shape: DecoderConfig = SHAPE) -> Params:
    """Untrained parameters that end their turns now and then, so that episodes are scored and rewards differ.

    Every embedding leans one way and the end token's leans further, which makes it likely whatever came before.
    """
    flat = flatten(init_params(shape, seed=0))
    embedding = np.array(flat["model.embed_tokens.weight"])
    embedding[:, 0] += 0.1
    embedding[TOKENIZER.special("<|end|>"), 0] += 1.8
    return nest(flat | {"model.embed_tokens.weight": embedding})


def lay_out(
    store: ObjectStore, folder: Path, run: Run, tasks: Sequence[Task] = TASKS, shape: DecoderConfig = SHAPE
) -> RLSpec:
    """Put weights, tasks and the stage's specification into the store, and the world into the folder."""
    (folder / "twice.py").write_text(WORLD)
    key, digest = put_tasks(store, tasks)
    weights = save_weights(store, "weights", shape, talkative(shape), TOKENIZER, "float32", "test")
    spec = RLSpec(
        run="test", key="0123", config=run.model_dump(mode="json"), folder=str(folder), seed=SEED, initial=weights,
        tasks=key, tasks_sha256=digest, environment_sha256=environment_sha256(run, folder),
    )  # fmt: skip
    store.create(keys.spec(BASE), spec.to_bytes())
    return spec


async def train(
    store: ObjectStore,
    spec: RLSpec,
    workers: int,
    report: Callable[..., None] = lambda *_, **__: None,
    load: LoadWeights = load_weights,
) -> AgenticRLLearner:
    """Real workers beside the real learner until it has closed the ledger; the learner's events go to `report`.

    Workers fetch policies with `load`.
    """
    learner = build(store, spec, BASE, "L")
    learner._report = report
    made = [Worker(store, BASE, spec, load=load, index=i, report=_quiet, stop=bool) for i in range(workers)]
    working = [asyncio.ensure_future(w.run()) for w in made]
    assert await asyncio.to_thread(learner.run) == "finished"
    await asyncio.gather(*working)
    return learner


def _quiet(*_: Any, **__: Any) -> None:
    """Workers' events are of no interest here."""
