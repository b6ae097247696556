"""The commands of the stand-ins in `fake_processes`, by the name of the function in `tasks.processes` they replace."""

from collections.abc import Callable

from tasks import processes
from tasks.children import Command


def _fake(name: str, what: str, root: str, option: str, value: str) -> Command:
    return Command(name, "fake_processes", (what, "--root", root, option, value))


COMMANDS: dict[str, Callable[..., Command]] = {
    "warm_up": lambda root, stage, spec: _fake(stage, "warm_up", root, "--spec", spec),
    "worker": lambda root, base, index, folder="": _fake(f"worker-{index}", "worker", root, "--base", base),
    "learner": lambda root, base: _fake("learner", "learner", root, "--base", base),
    "evaluate": lambda root, name, spec, niceness=0: _fake(name, "evaluate", root, "--spec", spec),
}


def install() -> None:
    """Replace the commands in this process."""
    for name, command in COMMANDS.items():
        setattr(processes, name, command)
