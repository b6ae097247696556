"""Stage keys: the digest of what a stage is made from. Equal keys mean that the work need not be done again.

Worker counts, concurrency, root and the number of RL steps are outside the keys; the code's commit is recorded, not
hashed. A stage's version is raised when its maths or its format changes.
"""

from collections.abc import Mapping
from typing import Any

from schemas.config import Run
from schemas.digest import digest
from schemas.stage_parts import engine_part, rl_part, warm_up_part
from schemas.version import SCHEMA_VERSION
from schemas.warm_ups import WarmUp

VERSIONS = {"scratch": 1, "sft": 3, "dpo": 2, "orpo": 2, "rl": 4, "evaluation": 3, "gate": 2}
"""The version that each kind of stage declares of itself."""


def scratch_key(config: Run, seed: int) -> str:
    """Untrained weights, made from an architecture and a seed."""
    architecture = config.model.architecture.model_dump(mode="json") if config.model.architecture else None
    return _key("scratch", architecture=architecture, seed=seed)


def warm_up_key(config: Run, stage: WarmUp, *, data: str, parent: str, seed: int) -> str:
    """A warm-up. The digests: its data, and the weights it starts from (empty: from scratch)."""
    return _key(stage.kind, config=warm_up_part(config, stage, scratch=not parent), data=data, parent=parent, seed=seed)


def rl_key(config: Run, *, tasks: str, environment: str, initial: str, seed: int) -> str:
    """Reinforcement learning. The digests: training tasks, user's modules, weights of version 0."""
    return _key("rl", config=rl_part(config), tasks=tasks, environment=environment, initial=initial, seed=seed)


def evaluation_key(
    config: Run, *, weights: str, tasks: str, environment: str, temperature: float, samples: int, seed: int
) -> str:
    """Playing a task set with fixed weights."""
    rollout = config.rollout
    playing = {
        "environment": config.environment.model_dump(mode="json"),
        "engine": rollout.engine,
        "script": rollout.script,
        "max_length": rollout.max_length,
        "max_tokens_per_turn": rollout.max_tokens_per_turn,
        "top_p": rollout.top_p,
        "top_k": rollout.top_k,
        "stop": list(rollout.stop),
        "attempts": rollout.attempts,
        "confidence": config.evaluation.confidence,
        "pass_at": list(config.evaluation.pass_at),
        "category": config.evaluation.category,
    } | engine_part(rollout)
    parts = {"weights": weights, "tasks": tasks, "environment": environment}
    return _key("evaluation", playing=playing, **parts, temperature=temperature, samples=samples, seed=seed)


def gate_key(config: Run, *, candidate: str, tasks: str, suites: Mapping[str, str], seed: int) -> str:
    """The gate's decision on a candidate. `suites`: suite without regression → the digest of its tasks.

    The champion of the day is not part of it: a decision is made once.
    """
    settings = config.promotion.model_dump(mode="json", exclude={"tasks", "name", "approval_seconds"})
    played = [s.model_dump(mode="json", exclude={"tasks"}) for s in config.evaluation.suites if s.name in suites]
    parts = {"candidate": candidate, "tasks": tasks, "suites": dict(suites), "played": played}
    return _key("gate", settings=settings, name=config.registry_name, **parts, seed=seed)


def _key(kind: str, **parts: Any) -> str:
    return digest({"kind": kind, "version": VERSIONS[kind], "schema": SCHEMA_VERSION, **parts})[:12]
