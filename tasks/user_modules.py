"""The user's own modules (`module:name` beside the configuration): found, and digested into the RL stage's key."""

from collections.abc import Iterator
from pathlib import Path

from schemas.config import Run
from schemas.digest import digest, sha256
from schemas.errors import RequestError


def references(config: Run) -> Iterator[tuple[str, str]]:
    """Every `module:name` of the configuration, with the setting that holds it."""
    environment = config.environment
    named = [("environment.environment", environment.environment), ("environment.agent", environment.agent)]
    named += [("environment.reward", environment.reward), ("rollout.script", config.rollout.script)]
    named += [("rl.loss.advantage", config.rl.loss.advantage), ("rl.loss.policy", config.rl.loss.policy)]
    named += [("environment.tools", tool) for tool in environment.tools]
    return ((setting, name) for setting, name in named if ":" in name)


def environment_sha256(config: Run, folder: Path) -> str:
    """Digest of the user's modules; empty where everything is built in.

    Only the named modules are digested, not what they import. RequestError where a module's file is missing.
    """
    found: dict[str, str] = {}
    for setting, reference in references(config):
        path = folder / (reference.partition(":")[0].replace(".", "/") + ".py")
        if not path.is_file():
            raise RequestError(f"{setting} = `{reference}`: there is no file {path}; create it or correct the name")
        found[reference.partition(":")[0]] = sha256(path.read_bytes())
    return digest(found) if found else ""
