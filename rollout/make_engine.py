"""The engine that a configuration names. JAX and HTTP are imported only where they are used."""

import asyncio
from typing import Any

from models.config import DecoderConfig
from models.plugins import load_object
from models.tokenizer import Tokenizer
from rollout.engine import Engine
from rollout.scripted import ScriptedEngine
from schemas.config import Rollout, Servers


async def make_engine(
    rollout: Rollout, folder: str, config: DecoderConfig, params: Any, version: int, tokenizer: Tokenizer
) -> Engine:
    """A running engine with these weights; importing and placing them happens in a thread.

    RequestError where the script can't be loaded or no server can be started or reached.
    """
    if rollout.servers is not None:
        return await _server_engine(rollout, rollout.servers, config, params, version, tokenizer)
    return await asyncio.to_thread(_engine, rollout, folder, config, params, version, tokenizer)


async def _server_engine(
    rollout: Rollout, servers: Servers, config: DecoderConfig, params: Any, version: int, tokenizer: Tokenizer
) -> Engine:
    from rollout.vllm_engine import VllmEngine

    engine = VllmEngine(
        config, params, tokenizer, servers, version=version, slots=rollout.slots, max_length=rollout.max_length
    )
    try:
        await engine.start()
    except BaseException:
        await engine.close()
        raise
    return engine


def _engine(
    rollout: Rollout, folder: str, config: DecoderConfig, params: Any, version: int, tokenizer: Tokenizer
) -> Engine:
    if rollout.engine == "scripted":
        script = load_object(rollout.script, folder, "rollout.script")
        return ScriptedEngine(script, version=version, max_length=rollout.max_length, decode=tokenizer.decode)
    from rollout.jax_engine import JaxEngine

    return JaxEngine(
        config,
        params,
        version=version,
        slots=rollout.slots,
        max_length=rollout.max_length,
        decode_steps=rollout.decode_steps,
        recompute=rollout.cache_on_update == "recompute",
        decode=tokenizer.decode,
    )
