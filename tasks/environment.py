"""Whether the user's own code can be loaded, and prompts fit: a trial before any work, so that a typo costs seconds."""

from typing import TYPE_CHECKING

from schemas.config import Rollout
from tasks.request import Request

if TYPE_CHECKING:
    from rollout.cast import Cast


def check_environment(request: Request) -> "Cast":
    """Load every name of the environment, the script and the loss once; RequestError says which is wrong.

    Then see that lengths and prompts fit the model. Returns what was loaded.
    """
    from models.plugins import load_object
    from rollout.cast import load_cast
    from tasks.fit import check_fit

    config, folder = request.config, str(request.folder)
    cast = load_cast(config.environment, folder)
    if config.rollout.engine == "scripted":
        load_object(config.rollout.script, folder, "rollout.script")
    _check_vllm(config.rollout)
    for setting, name in (("rl.loss.advantage", config.rl.loss.advantage), ("rl.loss.policy", config.rl.loss.policy)):
        if ":" in name:
            load_object(name, folder, setting)
    check_fit(request, cast)
    return cast


def _check_vllm(rollout: Rollout) -> None:
    """Whether this machine can start the servers that its own workers and evaluations need."""
    from rollout.vllm_server import interpreter

    if rollout.engine == "vllm" and not rollout.vllm.urls:
        interpreter(rollout.vllm)
