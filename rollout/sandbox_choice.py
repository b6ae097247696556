"""Which sandbox works here: bubblewrap if a trial command runs under it, else the plain process."""

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from rollout.sandbox import Limits, Sandbox
from rollout.sandbox_bubblewrap import BubblewrapSandbox
from rollout.sandbox_child import user
from rollout.sandbox_process import ProcessSandbox
from schemas.errors import RequestError

SANDBOXES: dict[str, type[BubblewrapSandbox] | type[ProcessSandbox]] = {
    "bubblewrap": BubblewrapSandbox,
    "process": ProcessSandbox,
}
TRIAL_SECONDS = 30.0


@functools.cache
def why_not_bubblewrap() -> str:
    """What keeps bubblewrap from working in this process, in a sentence; "" where it works. Asked once."""
    if not shutil.which("bwrap"):
        return "the program `bwrap` is not installed"
    sandbox, owner = BubblewrapSandbox(), user()
    with tempfile.TemporaryDirectory() as folder:
        sandbox.prepare(Path(folder))
        command = sandbox.wrapped(["true"], Path(folder), Limits(), ())
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=TRIAL_SECONDS,
                user=owner, group=owner, extra_groups=None if owner is None else (),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"a trial of bwrap took longer than {TRIAL_SECONDS:g} s"
    return f"a trial of bwrap failed: {done.stderr.strip()}" if done.returncode else ""


def choose_sandbox(name: str = "") -> Sandbox:
    """The sandbox of a name, or without one the best that works here; RequestError where none does."""
    if not shutil.which("prlimit"):
        raise RequestError("tools that run commands need Linux with the program `prlimit` (util-linux): install it")
    if name not in ("", *SANDBOXES):
        raise RequestError(f"there is no sandbox `{name}`: use {' or '.join(SANDBOXES)}")
    reason = "" if name == "process" else why_not_bubblewrap()
    if name == "bubblewrap" and reason:
        raise RequestError(f"the sandbox `bubblewrap` does not work here, since {reason}: mend that, or use `process`")
    return ProcessSandbox() if name == "process" or reason else BubblewrapSandbox()
