"""The parts of a configuration that the keys of stages hash; data and code enter them by digest (`tasks.plan`)."""

from typing import Any

from schemas.config import Rollout, Run
from schemas.warm_ups import WarmUp

# What a stage is not made from: changing these gives the same key (where and how fast, not what).
_ROLLOUT_FREE = frozenset(
    {"probe_tolerance", "workers", "max_concurrency", "slots", "decode_steps", "poll_seconds", "cores", "max_takeovers"}
)
_ROLLOUT_FREE |= {
    "quarantine_after",
    "vllm",
    "sglang",
    "infrastructure",
    "deployment",
    "join_seconds",
    "driver_seconds",
}
_ROLLOUT_FREE |= {"seal_rows", "seal_bytes", "seal_seconds", "heartbeat_seconds", "lease_seconds"}
_RL_FREE = frozenset({"steps", "tasks", "checkpoint_every", "cores", "mesh", "processes"})
_RL_FREE |= {"idle_seconds", "group_seconds", "window_seconds"}


def rl_part(config: Run) -> dict[str, Any]:
    """The part of the configuration that an RL stage's key hashes; data and code enter it by digest."""
    rl = config.rl.model_dump(mode="json", exclude=set(_RL_FREE))
    for optimizer in filter(None, (rl["optimizer"], rl["critic_optimizer"])):
        if optimizer["decay_steps"] is None and optimizer["schedule"] != "constant":
            optimizer["decay_steps"] = config.rl.steps
    return (
        {
            "rl": rl,
            "rollout": config.rollout.model_dump(mode="json", exclude=set(_ROLLOUT_FREE)),
            "environment": config.environment.model_dump(mode="json"),
        }
        | engine_part(config.rollout)
        | lora_part(config)
    )


def engine_part(rollout: Rollout) -> dict[str, Any]:
    """What of an engine's own settings decides its samples."""
    return {rollout.engine: {"dtype": rollout.servers.dtype}} if rollout.servers is not None else {}


def lora_part(config: Run) -> dict[str, Any]:
    """The adapters that are trained instead of all weights; nothing where there are none."""
    return {"lora": config.lora.model_dump(mode="json")} if config.lora else {}


def warm_up_part(config: Run, stage: WarmUp, *, scratch: bool) -> dict[str, Any]:
    """The part of the configuration that a warm-up stage's key hashes; data and parent enter it by digest.

    `scratch`: it starts from no weights, so it has nothing to adapt."""
    architecture = config.model.architecture.model_dump(mode="json") if config.model.architecture else None
    tools = list(config.environment.tools)
    return {
        "stage": stage.model_dump(mode="json", exclude={"data", "name"}),
        "architecture": architecture,
        "tools": tools,
    } | ({} if scratch else lora_part(config))
