"""The small project, and a run that was killed in every way and went on: made once, looked at by several tests."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import real_run
from support.projects import project, root
from support.real_run import Project, alive, children, until
from support.recount import recount

from flows import prefect_environment

__all__ = ["killed", "prefect_server", "project", "root"]


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[str]:
    """The address of a server of its own, as slow to start as servers are."""
    prefect_environment.prepare(quiet=True)
    from prefect.settings import get_current_settings
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=500):
        yield str(get_current_settings().api.url)


@dataclass(frozen=True)
class Killed:
    """What was seen around the kills."""

    project: Project
    first: str
    """What the killed driver had said."""
    orphans: list[str]
    """Processes that outlived their driver."""
    status: dict[str, Any]
    live: dict[str, Any]
    counted: dict[str, Any]
    """`status`, `audit verify` and the independent recount before the run went on."""
    second: subprocess.CompletedProcess[str]
    """The next `headrace run`."""


@pytest.fixture(scope="session")
def killed(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """kill -9 of the learner, of a worker and of the whole flow, each in the middle of RL; then the next run."""
    made = real_run.lay_out(tmp_path_factory.mktemp("killed"), prefect_server)
    log = made.folder / "first.log"
    driver = made.start("run", log)
    try:
        for module in ("trainer.learner_process", "rollout.worker", ""):
            three_more_steps(made, driver, log)
            family = children(driver.pid)
            for process in [p for p in family if module and module in p.cmdline()][:1]:
                process.kill()
    finally:
        driver.kill()
        driver.wait()
    _, orphans = psutil.wait_procs(family, timeout=30)
    status, live = (made.headrace(*argv, "--json") for argv in (("status", "small"), ("audit", "verify", "small")))
    return Killed(
        made, log.read_text(), [str(p) for p in alive(orphans)], json.loads(status.stdout),
        json.loads(live.stdout), recount(made.root, "small"), made.headrace("run"),
    )  # fmt: skip


def three_more_steps(made: Project, driver: "subprocess.Popen[bytes]", log: Path) -> None:
    wanted = made.records() + 3
    until(lambda: made.records() >= wanted or driver.poll() is not None, "three more steps")
    assert driver.poll() is None, log.read_text()
