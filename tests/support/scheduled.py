"""A schedule on a work pool: a project of stand-ins or real stages, its deployment, its process worker, its runs."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from prefect.client.schemas.objects import FlowRun

from schemas.manifest import RunManifest
from storage.objects import ObjectStore
from storage.open import open_store
from support.prefect_site import PREFECT, TREE, Machine, Site
from support.projects import FAKES
from support.real_run import COMMAND, alive, lay_out, until
from tasks.record import read_run
from tasks.status import runs

MINUTES = 300.0
"""How long anything may take on a machine that does much else."""


@dataclass
class Scheduled:
    """A schedule called `name` whose firings are carried out on `host`."""

    site: Site
    host: Machine
    name: str
    timings: dict[str, float] = field(default_factory=dict)
    seen: list[psutil.Process] = field(default_factory=list)
    """Every process that was found below a worker."""

    @property
    def root(self) -> str:
        return str(self.host.folder / "root")

    @property
    def store(self) -> ObjectStore:
        return open_store(self.root)

    @property
    def deployment(self) -> str:
        return f"post-training/{self.name}"

    def headrace(self, *words: str) -> str:
        """A command that ends well; what it prints."""
        done = self.host.call(str(COMMAND), *words, "--root", self.root)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def deploy(self, *words: str) -> None:
        """Create the pool and the deployment."""
        made = self.host.call(PREFECT, "work-pool", "create", self.name, "--type", "process", "--overwrite")
        assert made.returncode == 0, made.stderr
        self.headrace("deploy", "small.toml", "--set", f"name={self.name}", "--work-pool", self.name, *words)

    def worker(self, log: str = "worker") -> "Any":
        """Start a worker of the pool."""
        return self.host.start(log, PREFECT, "worker", "start", "--pool", self.name, "--name", log)

    def fire(self, **parameters: Any) -> FlowRun:
        """A firing by the API."""
        return self.site.ask(self.deployment, f"by hand {time.time():.0f}", **parameters)

    def pace(self, seconds: float) -> None:
        """How long a step of the stand-ins' learner takes, also of one that is at work."""
        (self.host.folder / "pace").write_text(str(seconds))

    def runs(self) -> dict[str, RunManifest]:
        """The runs in the store by name, oldest first."""
        names = [r["run"] for r in runs(self.store)]
        found = {name: read_run(self.store, name) for name in names}
        return {name: manifest for name, manifest in found.items() if manifest is not None}

    def ended(self) -> list[str]:
        return [name for name, manifest in self.runs().items() if manifest.state == "finished"]

    def family(self, *modules: str) -> list[psutil.Process]:
        """Living processes below what was started here, if named only those that run such a module."""
        started = [p for p in self.host.running if p.poll() is None]
        found = alive([c for p in started for c in psutil.Process(p.pid).children(recursive=True)])
        self.seen += [p for p in found if p not in self.seen]
        return [p for p in found if not modules or set(modules) & set(command(p))]

    def flow_and_below(self) -> list[psutil.Process]:
        """The process of the flow run that drives a learner, and all below it."""
        (learner,) = self.family("learner", "trainer.learner_process")
        driver = learner.parent()
        assert driver is not None
        return [driver, *driver.children(recursive=True)]

    def at_work(self) -> bool:
        """Whether a learner and two rollout workers are at work."""
        learner, workers = self.family("learner", "trainer.learner_process"), self.family("worker", "rollout.worker")
        return len(learner) == 1 and len(workers) == 2

    def firing(self) -> tuple[FlowRun, list[psutil.Process]]:
        """A firing by the API once it is at work: the process of its flow run first, then those below it."""
        self.pace(600)
        flow = self.fire()
        self.timed("the firing is at work", self.at_work)
        return flow, self.flow_and_below()

    def gone(self, processes: list[psutil.Process]) -> bool:
        return not alive(processes)

    def timed(self, what: str, done: Callable[[], object], seconds: float = MINUTES) -> None:
        """Wait for something and note how long it took."""
        started = time.monotonic()
        until(lambda: bool(done()), what, seconds)
        self.timings[what] = round(time.monotonic() - started, 1)

    def close(self) -> None:
        """End all that was started, tell the timings, and see that nothing is left."""
        self.family()
        self.host.stop()
        print(json.dumps({self.name: self.timings}))
        until(lambda: self.gone(self.seen), "an orphan ends", 30)


def command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def stand_ins(site: Site, folder: Path, name: str) -> Scheduled:
    """A schedule of stand-ins in a folder that holds the small project."""
    shared = {
        "PREFECT_API_URL": site.api,
        "HEADRACE_FAKES": "1",
        "PYTHONPATH": os.pathsep.join([str(FAKES), str(TREE)]),
        "FAKE_PACE": str(folder / "pace"),
    }
    made = Scheduled(site, Machine(folder, shared), name)
    made.pace(0.0)
    return made


def real(site: Site, folder: Path, name: str) -> Scheduled:
    """A schedule whose stages learn: the model of a few thousand parameters, its project laid out in the folder."""
    lay_out(folder, site.api)
    cache = str(folder / "cache")
    return Scheduled(site, Machine(folder, {"PREFECT_API_URL": site.api, "XDG_CACHE_HOME": cache}), name)
