"""Escapes: bubblewrap stops every one, as root and as an ordinary user; the plain process those that it says."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import escapes

from rollout.sandbox_child import NOBODY
from rollout.sandbox_choice import why_not_bubblewrap

TREE = Path(__file__).parents[2]
NOT_STOPPED_BY_PROCESS = {
    "network", "home", "store", "worker", "symlink", "write_outside", "nameless_memory", "signal_parent",
    "background_session", "namespaces",
}  # fmt: skip
"""For an ordinary user; docs/environments.md says the same."""

needs_bubblewrap = pytest.mark.skipif(bool(why_not_bubblewrap()), reason=why_not_bubblewrap() or "it works")
needs_prlimit = pytest.mark.skipif(not shutil.which("prlimit"), reason="needs Linux with prlimit")


def _attempted(backend: str, ordinary: bool) -> dict[str, bool]:
    """The escapes tried by a process of this user or of an ordinary one: by name, whether each was stopped."""
    owner, python = None, sys.executable
    if ordinary and os.getuid() == 0:
        owner = NOBODY
        python = _python_for_all()
    path = os.pathsep.join(map(str, (TREE, TREE / "tests")))
    done = subprocess.run(
        [python, "-P", "-B", "-m", "support.escapes", backend], cwd="/", timeout=240, capture_output=True, text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path, "ESCAPE_SECRET": escapes.SECRET},
        user=owner, group=owner, extra_groups=None if owner is None else (),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _python_for_all() -> str:
    """A Python that an ordinary user may run on this tree; the test is skipped where there is none."""
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        trial = [python, "-P", "-B", "-c", "import support.escapes"]
        path = os.pathsep.join(map(str, (TREE, TREE / "tests")))
        try:
            found = subprocess.run(
                trial, cwd="/", env={"PYTHONPATH": path}, user=NOBODY, group=NOBODY, extra_groups=(), timeout=60,
                capture_output=True,
            )  # fmt: skip
        except OSError:
            continue
        if found.returncode == 0:
            return python
    pytest.skip("no Python that an ordinary user may run on this tree")


@needs_prlimit
@needs_bubblewrap
def test_bubblewrap_stops_every_escape() -> None:
    stopped = _attempted("bubblewrap", ordinary=False)
    assert {name for name, was in stopped.items() if not was} == set()


@needs_prlimit
@needs_bubblewrap
@pytest.mark.skipif(os.getuid() != 0, reason="the test before has run as an ordinary user")
def test_bubblewrap_stops_every_escape_of_an_ordinary_user() -> None:
    stopped = _attempted("bubblewrap", ordinary=True)
    assert {name for name, was in stopped.items() if not was} == set()


@needs_prlimit
def test_the_plain_process_stops_what_it_says_and_no_more() -> None:
    stopped = _attempted("process", ordinary=True)
    kernel_refuses = {"namespaces"}  # some kernels let no ordinary user make them
    assert {name for name, was in stopped.items() if not was} | kernel_refuses == NOT_STOPPED_BY_PROCESS
