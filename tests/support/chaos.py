"""A run of real processes under fire: `headrace run` and all that it starts, killed and frozen, and started again.

The learner is `chaos_learner`, so that every blow at it is noted with the phase that it hit, and so that the run makes
as many steps as a test has allowed, however fast the machine is.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rollout.claims import open_groups
from schemas import keys
from storage import audit, control
from storage.objects import find
from storage.open import open_store

TESTS = Path(__file__).parents[1]
LEARNER, WORKER = "support.chaos_learner", "rollout.worker"
PATIENCE = 300.0
"""Seconds that anything may take on a busy machine before the test gives up."""
LEASE = 4.0
"""Seconds of a worker's lease."""
RUN = "small"
SCRIPT = """
import asyncio, random
from rollout.environments import ToolEnvironment

class Slow(ToolEnvironment):
    async def step(self, action):
        await asyncio.sleep(0.5)
        return await super().step(action)

def parity(task, messages):
    return float(len(messages[-1].content) % 2)

def say(stream, seed, version):
    draw = random.Random(seed)
    tokens = [draw.randrange(97, 123) for _ in range(draw.randrange(1, 4))] + [262]
    return tokens, [-5.5] * len(tokens)
"""


def settings(steps: int, remote: bool) -> tuple[str, ...]:
    """A run of two groups of four a step, a checkpoint every three, two scripted workers.

    A remote store allows one object one write a second.
    """
    window, beat = (1.0, 1.0) if remote else (0.05, 0.3)
    return (
        f"rl.steps={steps}", "rl.groups_per_batch=2", "rl.group_size=4", "rl.checkpoint_every=3",
        f"rl.window_seconds={window}",
        "rollout.engine=scripted", "rollout.script=world:say", "rollout.max_concurrency=8", "rollout.max_length=48",
        "rollout.max_tokens_per_turn=4", f"rollout.heartbeat_seconds={beat}", f"rollout.lease_seconds={LEASE}",
        "rollout.seal_seconds=0.3", "rollout.max_takeovers=20", "evaluation.workers=1",
        "environment.environment=world:Slow", "environment.reward=world:parity",
    )  # fmt: skip


@dataclass(frozen=True)
class Blow:
    """What was done to whom, and what it was doing."""

    target: str
    how: str
    phase: str
    step: int
    after: float
    """Seconds since the test began."""


@dataclass
class Chaos:
    """One run under fire. `folder` holds the orders to the learner and the drivers' output."""

    project: Path
    root: str
    folder: Path
    api: str
    """The address of Prefect's server."""
    steps: int
    seed: int
    allowed: int = 0
    blows: list[Blow] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    """The last line of each driver that gave up by itself."""
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        (self.project / "world.py").write_text(SCRIPT)
        self.random, self.store = random.Random(self.seed), open_store(self.root)
        self._logs: dict[int, Path] = {}
        self._base, self._made = "", 0
        self._others: list[subprocess.Popen[bytes]] = []
        self.allow(2)
        self.driver = self.drive()

    # -- processes --------------------------------------------------------------------------------------------

    def drive(self) -> subprocess.Popen[bytes]:
        """`headrace run`, from the beginning or on from where it is."""
        words = [word for setting in settings(self.steps, "://" in self.root) for word in ("--set", setting)]
        config = str(self.project / "small.toml")
        return self._start("headrace", "run", config, "--root", self.root, *words)

    def rival(self) -> subprocess.Popen[bytes]:
        """One more learner on the run's RL stage, beside the one that the driver has started."""
        return self._start(LEARNER, "--root", self.root, "--base", self.base())

    def _start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self.folder / f"{len(self._others):03d}-{module}.log"
        paths = [str(TESTS), str(TESTS / "support" / "chaos_site"), os.environ.get("PYTHONPATH", "")]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        env |= {"CHAOS_FOLDER": str(self.folder), "PREFECT_API_URL": self.api}
        with log.open("wb") as out:
            argv = [sys.executable, "-m", module, *arguments]
            process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, env=env, cwd=TESTS.parent)
        self._logs[process.pid] = log
        self._others.append(process)
        return process

    def said(self, process: subprocess.Popen[bytes]) -> str:
        """All that a process has printed."""
        return self._logs[process.pid].read_text(errors="replace")

    def ensure(self) -> None:
        """Drive on if the driver has ended by itself."""
        if self.driver.poll() is not None:
            lines = self.said(self.driver).strip().splitlines() or [""]
            assert self.driver.returncode == 1, self.said(self.driver)[-3000:]
            self.ends.append(lines[-1])
            self.driver = self.drive()

    def end(self) -> None:
        """Leave nothing running."""
        for process in self._others:
            process.kill()
            process.wait()

    def pids(self, module: str) -> list[int]:
        """The driver's children that run a module, oldest first."""
        try:
            children = psutil.Process(self.driver.pid).children(recursive=True)
            return sorted(c.pid for c in children if module in c.cmdline() and c.status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return []

    def one(self, module: str) -> int:
        """One of them, waiting for it."""
        self.until(lambda: bool(self.pids(module)), f"a process of {module}")
        found = self.pids(module)
        return self.random.choice(found) if found else self.one(module)

    # -- progress ---------------------------------------------------------------------------------------------

    def base(self) -> str:
        """The folder of the run's one RL stage, waiting for it."""
        self.until(self._opened, "the RL stage")
        return self._base

    def _opened(self) -> bool:
        if not self._base:
            specs = [k for k in self.store.list(f"runs/{RUN}/") if "/rl-" in k and k.endswith("/spec.json")]
            self._base = specs[0].removesuffix("/spec.json") if specs else ""
        return bool(self._base)

    def made(self) -> int:
        """Ledger records so far."""
        while self._opened() and self.store.head(keys.ledger(self._base, self._made)) is not None:
            self._made += 1
        return self._made

    def allow(self, more: int) -> None:
        """Let the run make so many steps more than allowed so far."""
        self.allowed += more
        self._write("allowed", str(self.allowed))

    def until(self, condition: Callable[[], bool], what: str, *, keep: bool = True) -> None:
        """Wait for a condition, with a driver at work unless `keep` says no."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, (
                f"waited too long for {what}; the driver said: {self.said(self.driver)[-3000:]}"
            )
            if keep:
                self.ensure()
            time.sleep(0.05)

    def until_made(self, count: int) -> None:
        self.until(lambda: self.made() >= count, f"step {count}")

    def check(self) -> audit.Verification:
        """Whatever has happened so far, the audit of the run as it stands is ok."""
        found = audit.verify(self.store, RUN)
        assert found.ok, found.sentence()
        return found

    # -- blows ------------------------------------------------------------------------------------------------

    def strike(self, pid: int, target: str, how: signal.Signals, doing: str = "") -> None:
        """Signal a process, and note what it was doing; a learner is stopped while we look."""
        try:
            os.kill(pid, signal.SIGSTOP)
            phase = doing or (self.holding(pid) if target == "worker" else self.phase(pid))
            os.kill(pid, how)
        except ProcessLookupError:
            return
        self._note(target, how.name, phase)

    def go_on(self, pid: int) -> None:
        """Wake a stopped process, if it still exists."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def order(self, how: signal.Signals, phase: str) -> int:
        """Have the next learner that comes to a phase stop or die there; returns its pid."""
        before = set(self.folder.glob("obeyed-*"))
        self._write("order", f"{how.name} {phase}")
        self.until(lambda: set(self.folder.glob("obeyed-*")) != before, f"a learner at `{phase}`")
        self._note("learner", how.name, phase)
        (new,) = set(self.folder.glob("obeyed-*")) - before
        return int(new.name.partition("-")[2])

    def phase(self, pid: int) -> str:
        """What a learner is doing, as it has noted it."""
        path = self.folder / f"{pid}.phase"
        return (path.read_text().strip() if path.exists() else "") or "starting"

    def holding(self, pid: int) -> str:
        """How many open groups a worker process has claimed."""
        number, found = 0, control.read_window(self.store, self.base())
        ids: list[str] = []
        while (state := control.read_worker(self.store, self.base(), number)) is not None:
            ids += [state[0].worker] if state[0].pid == pid else []
            number += 1
        claims = [control.read_claim(self.store, self.base(), g) for g in open_groups(found[0])] if found else []
        return f"{sum(c is not None and c[0].owner in ids for c in claims)} open groups"

    def takeovers(self) -> int:
        """How often the groups of dead or sleeping workers were taken over."""
        claims = (self.store.get(key).data for key in self.store.list(f"{self.base()}/claims/"))
        return sum(json.loads(claim)["takeovers"] for claim in claims)

    def _note(self, target: str, how: str, phase: str) -> None:
        self.blows.append(Blow(target, how, phase, self.made(), self.seconds()))
        with (self.folder / "blows.jsonl").open("a") as file:
            file.write(json.dumps(vars(self.blows[-1])) + "\n")

    def seconds(self) -> float:
        """Since the beginning."""
        return round(time.monotonic() - self.started, 1)

    def _write(self, name: str, text: str) -> None:
        (self.folder / f"{name}.new").write_text(text)
        os.replace(self.folder / f"{name}.new", self.folder / name)

    # -- the end ----------------------------------------------------------------------------------------------

    def finish(self) -> str:
        """Let the run come to its end; returns what the last driver printed."""
        self.allow(self.steps)
        while self.driver.poll() != 0:
            self.until(lambda: self.driver.poll() is not None, "the end of the run", keep=False)
            if self.driver.returncode:
                self.ensure()
        stored = find(self.store, keys.rl_manifest(self.base()))
        assert stored is not None
        return self.said(self.driver)

    def replayed(self) -> dict[str, Any]:
        """What `headrace audit replay` says of the last checkpoint, retrained from version 0 by the ledger alone."""
        last = f"{RUN}@{self.steps}"
        process = self._start("headrace", "audit", "replay", last, "--from-start", "--json", "--root", self.root)
        assert process.wait(PATIENCE) == 0, self.said(process)
        return json.loads(self.said(process))
