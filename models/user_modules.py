"""The user's own modules (`module:name` beside the configuration): found, and digested into the RL stage's key.

What they import from the same folder counts too, and so do Python files there that they name as text, as a command
does. Only text is read here; nothing of it is run.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from schemas.config import Run
from schemas.digest import digest, sha256
from schemas.errors import RequestError, RunStopped

_FILE = re.compile(r"(\w[\w.-]{0,99}/){0,9}\w[\w.-]{0,99}\.py")


def references(config: Run) -> Iterator[tuple[str, str]]:
    """Every `module:name` of the configuration, with the setting that holds it."""
    environment = config.environment
    named = [("environment.environment", environment.environment), ("environment.agent", environment.agent)]
    named += [("environment.reward", environment.reward)]
    named += [("rollout.script", config.rollout.script)] if config.rollout.engine == "scripted" else []
    named += [("rl.loss.advantage", config.rl.loss.advantage), ("rl.loss.policy", config.rl.loss.policy)]
    named += [("environment.tools", tool) for tool in environment.tools]
    return ((setting, name) for setting, name in named if ":" in name)


def environment_sha256(config: Run, folder: Path) -> str:
    """Digest of the user's modules and of what they import from their folder; empty where everything is built in.

    RequestError where a module's file is missing.
    """
    waiting: list[Path] = []
    for setting, reference in references(config):
        path = folder / (reference.partition(":")[0].replace(".", "/") + ".py")
        if not path.is_file():
            raise RequestError(f"{setting} = `{reference}`: there is no file {path}; create it or correct the name")
        waiting.append(path)
    found: dict[Path, str] = {}
    while waiting:
        path = waiting.pop()
        if path not in found:
            source = path.read_bytes()
            found[path] = sha256(source)
            waiting += [file for file in _imported(source, path, folder) if file.is_relative_to(folder)]
    return digest({str(path.relative_to(folder)): sha for path, sha in found.items()}) if found else ""


def check_same(config: Run, folder: str, sha256: str, run: str) -> None:
    """RunStopped unless the modules in this folder are those whose digest a stage of the run was made with."""
    found = environment_sha256(config, Path(folder))
    if found != sha256:
        raise RunStopped(
            f"the modules in {folder} are no longer those that run {run} began this stage with (digest "
            f"{found[:12] or 'of none'}, the stage has {sha256[:12] or 'none'}): put them back, or start the run again "
            f"to go on with what is there"
        )


def _imported(source: bytes, path: Path, folder: Path) -> Iterator[Path]:
    """Files below the folder that a module may mean. None where it can't be parsed: loading it says why."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (found for alias in node.names for found in _files(folder, alias.name))
        elif isinstance(node, ast.ImportFrom):
            start = path.parents[node.level - 1] if 0 < node.level <= len(path.parents) else folder
            module = node.module or ""
            yield from _files(start, module)
            yield from (found for alias in node.names for found in _files(start, f"{module}.{alias.name}".strip(".")))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _FILE.fullmatch(node.value):
            yield from (file for file in [folder / node.value] if file.is_file())


def _files(start: Path, module: str) -> Iterator[Path]:
    """The files of `a.b.c` and of the packages that it lies in, as far as they are there."""
    parts = [part for part in module.split(".") if part and part != "*"]
    for count in range(1, len(parts) + 1):
        at = start.joinpath(*parts[:count])
        yield from (file for file in (at.with_suffix(".py"), at / "__init__.py") if file.is_file())
