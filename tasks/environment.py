"""Whether the configured environment can be made: a trial before any work starts, so that a typo costs seconds."""

from tasks.request import Request


def check_environment(request: Request) -> None:
    """Load every name of the environment and the engine's script once; RequestError says which is wrong."""
    from rollout.cast import load_cast
    from rollout.plugins import load_object

    config, folder = request.config, str(request.folder)
    load_cast(config.environment, folder)
    if config.rollout.engine == "scripted":
        load_object(config.rollout.script, folder, "rollout.script")
