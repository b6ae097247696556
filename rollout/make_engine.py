"""The engine that a configuration names. JAX is imported only where it is used."""

from typing import Any

from models.config import DecoderConfig
from models.plugins import load_object
from rollout.engine import Decode, Engine
from rollout.scripted import ScriptedEngine
from schemas.config import Rollout


def make_engine(
    rollout: Rollout, folder: str, config: DecoderConfig, params: Any, version: int, decode: Decode
) -> Engine:
    """A running engine with these weights. RequestError where the script can't be loaded."""
    if rollout.engine == "scripted":
        script = load_object(rollout.script, folder, "rollout.script")
        return ScriptedEngine(script, version=version, max_length=rollout.max_length, decode=decode)
    from rollout.jax_engine import JaxEngine

    return JaxEngine(
        config,
        params,
        version=version,
        slots=rollout.slots,
        max_length=rollout.max_length,
        decode_steps=rollout.decode_steps,
        decode=decode,
    )
