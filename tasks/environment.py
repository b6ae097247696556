"""Whether the user's own code can be loaded, and prompts fit: a trial before any work, so that a typo costs seconds."""

import asyncio
from typing import TYPE_CHECKING

from tasks.request import Request

if TYPE_CHECKING:
    from rollout.cast import Cast


def check_environment(request: Request) -> "Cast":
    """Load every name of the environment, the script and the loss once; RequestError says which is wrong.

    Then see that lengths and prompts fit the model, and that vLLM is there if it is to play. Returns what was loaded.
    """
    from models.plugins import load_object
    from rollout.cast import load_cast
    from tasks.fit import check_fit

    config, folder = request.config, str(request.folder)
    cast = load_cast(config.environment, folder)
    if config.rollout.engine == "scripted":
        load_object(config.rollout.script, folder, "rollout.script")
    for setting, name in (("rl.loss.advantage", config.rl.loss.advantage), ("rl.loss.policy", config.rl.loss.policy)):
        if ":" in name:
            load_object(name, folder, setting)
    check_fit(request, cast)
    _check_servers(request)
    return cast


def _check_servers(request: Request) -> None:
    """Whether this machine can start the servers that its workers need, or those by URL are there and of use."""
    from rollout.vllm_check import check_servers
    from rollout.vllm_server import interpreter
    from tasks.fit import decoder_config
    from tasks.initial import read_config_json

    config, servers = request.config, request.config.rollout.servers
    if servers is None:
        return
    if not servers.urls:
        interpreter(servers)
        return
    rank = config.lora.rank if config.lora and config.rollout.vllm.adapters else 0
    model = decoder_config(read_config_json(request), config.model.architecture)
    asyncio.run(check_servers(servers, model, config.rollout.max_length, rank))
