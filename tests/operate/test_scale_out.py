"""Rollout workers of a work pool on machines that share only a bucket: they join, are cancelled and die during RL.

Real Prefect server, two real process workers with homes and working folders of their own, real learner and engines.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from support import real_run
from support.fake_gcs import FakeGcs
from support.prefect_site import PREFECT, Machine, Site
from support.real_run import alive, until
from support.recount import count_stage, read_ledger, read_rows

from schemas.manifest import WorkerState
from storage.control import read_worker
from storage.objects import ObjectStore
from storage.open import open_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = "gs://bucket/shared"
STEPS = 40
SETTINGS = (
    f"rl.steps={STEPS}", "rollout.infrastructure=deployment", "rollout.workers=1", "rollout.lease_seconds=8",
    "rollout.driver_seconds=60",
)  # fmt: skip


@dataclass
class World:
    """A bucket, a server, the driver's machine and the workers' machines."""

    site: Site
    driver: Machine
    others: dict[str, Machine]
    store: ObjectStore
    deployment: str
    timings: dict[str, float] = field(default_factory=dict)

    def command(self, *more: str) -> list[str]:
        chosen = (*SETTINGS, f"rollout.deployment={self.deployment}", *more)
        settings = [word for setting in chosen for word in ("--set", setting)]
        return [str(real_run.COMMAND), "run", "small.toml", "--root", ROOT, *settings]

    def pace(self, seconds: float) -> None:
        """How long an episode takes, on every machine."""
        for machine in (self.driver, *self.others.values()):
            (machine.folder / "pace").write_text(str(seconds))

    def base(self) -> str:
        found = [key for key in self.store.list("runs/small/") if key.endswith("/spec.json") and "/rl-" in key]
        return found[0].rpartition("/")[0] if found else ""

    def workers(self) -> list[WorkerState]:
        found, number, base = [], 0, self.base()
        while base and (state := read_worker(self.store, base, number)) is not None:
            found.append(state[0])
            number += 1
        return found

    def at_work(self) -> list[str]:
        """Workers that have sealed something and have not left."""
        return [w.worker for w in self.workers() if w.state == "running" and w.next_seq > 0]

    def records(self) -> int:
        return len([key for key in self.store.list("runs/small/") if "/ledger/" in key])

    def more_steps(self, count: int) -> None:
        wanted = self.records() + count
        until(lambda: self.records() >= wanted, f"{count} more steps", 300)

    def timed(self, what: str, done: Callable[[], object], seconds: float = 300) -> None:
        started = time.monotonic()
        until(lambda: bool(done()), what, seconds)
        self.timings[what] = round(time.monotonic() - started, 1)


@pytest.fixture
def world(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with FakeGcs("bucket") as fake:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", fake.url)
        shared = {"PREFECT_API_URL": site.api, "STORAGE_EMULATOR_HOST": fake.url}
        project = tmp_path / "driver"
        project.mkdir()
        real_run.lay_out(project, site.api)
        (project / "slow.py").write_text(real_run.PACED)
        driver = Machine(project, shared)
        others = {name: machine(tmp_path / name, shared, project) for name in ("a", "b", "c")}
        made = World(site, driver, others, open_store(ROOT), f"rollout-worker/{tmp_path.name}")
        made.pace(2.0)
        deploy(driver, "rollout", made.deployment)
        for name in ("a", "b"):
            others[name].start(
                "worker", PREFECT, "worker", "start", "--pool", "rollout", "--name", name, "--limit", "1"
            )
        try:
            yield made
        finally:
            for one in (driver, *others.values()):
                one.stop()
            print(json.dumps(made.timings))


def machine(folder: Path, shared: dict[str, str], project: Path) -> Machine:
    """One that has the user's module in a folder of its own, and nothing of the driver's."""
    folder.mkdir()
    shutil.copy(project / "slow.py", folder)
    return Machine(folder, shared | {"HEADRACE_FOLDER": str(folder)})


def deploy(driver: Machine, pool: str, name: str) -> None:
    made = driver.call(PREFECT, "work-pool", "create", pool, "--type", "process", "--overwrite")
    assert made.returncode == 0, made.stdout + made.stderr
    code = f"from flows.rollout_worker import deployment; deployment({pool!r}, {name!r}).apply()"
    made = driver.call(sys.executable, "-c", code)
    assert made.returncode == 0, made.stderr


def rollouts(world: World) -> list[psutil.Process]:
    """The processes that roll out on the two machines of the pool."""
    started = [p for name in "ab" for p in world.others[name].running if p.poll() is None]
    family = [c for p in started for c in psutil.Process(p.pid).children(recursive=True)]
    return [p for p in alive(family) if "rollout.worker" in p.cmdline()]


def kill_flow(world: World) -> None:
    """kill -9 the flow run that supervises the only rollout process."""
    (worker,) = rollouts(world)
    flow = worker.parent()
    assert flow is not None
    flow.kill()


def accounted(world: World, folder: Path) -> None:
    """The bucket's run, recounted from files without our code: every row of every worker has its end."""
    for key in world.store.list("runs/small/"):
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(world.store.get(key).data)
    base = folder / world.base()
    counted = count_stage(base)
    found = world.driver.call(str(real_run.COMMAND), "audit", "verify", "small", "--json", "--root", ROOT)
    told = json.loads(found.stdout)
    assert found.returncode == 0 and told["ok"] and counted["ok"], found.stdout
    for name in ("generated", "dispositions", "trained_twice", "unaccounted", "pending", "max_staleness"):
        assert told[name] == counted[name], name
    assert told["dispositions"]["trained"] == STEPS * real_run.ROWS
    stored = Counter(worker for worker, _, _ in read_rows(base))
    lines = [line for _, record in read_ledger(base)[0] for line in record if line["kind"] == "trajectory"]
    assert Counter(line["worker"] for line in lines) == stored
    world.timings["rows"] = sum(stored.values())


def test_workers_join_and_leave_while_the_learner_runs(world: World, tmp_path: Path) -> None:
    driver = world.driver.start("run", *world.command())
    world.timed("the first worker joins", world.at_work)
    (first,) = world.site.runs(world.deployment)
    second = world.site.ask(world.deployment, "second", root=ROOT, run="small")
    world.timed("a second joins", lambda: len(world.at_work()) == 2)
    homes = {p.cmdline()[p.cmdline().index("--folder") + 1] for p in rollouts(world)}
    assert homes == {str(world.others[name].folder) for name in "ab"}

    world.site.cancel(first)
    world.timed("the first is cancelled", lambda: world.site.state(first) == "CANCELLED")
    until(lambda: world.workers()[0].state == "left", "it says that it leaves")
    world.more_steps(2)
    assert world.site.state(second) == "RUNNING" and driver.poll() is None

    (victim,) = rollouts(world)
    before = world.workers()[1].worker
    victim.kill()
    world.timed("a killed worker process is replaced", lambda: set(world.at_work()) - {before})
    world.more_steps(2)

    command = [str(real_run.COMMAND), "work", "small", "--root", ROOT]
    by_hand = world.others["c"].start("work", *command)
    world.timed("a third joins by hand", lambda: len(set(world.at_work()) - {before}) == 2)
    kill_flow(world)
    world.timed("a killed flow run is noticed", lambda: world.site.state(second) == "CRASHED")
    until(lambda: not rollouts(world), "no orphan is left", 10)
    world.more_steps(2)
    last = world.site.ask(world.deployment, "last", root=ROOT, run="small", workers=2)
    world.timed("two more join", lambda: sum(w.state == "running" for w in world.workers()[4:]) == 2)
    by_hand.send_signal(signal.SIGINT)
    assert by_hand.wait(60) == 0 and "left run small: asked to leave" in world.others["c"].said("work")

    world.pace(0.0)
    world.timed("the run ends", lambda: driver.poll() is not None, 600)
    assert driver.poll() == 0, world.driver.said("run")
    assert "its flow run was cancelled: the run goes on without it" in world.driver.said("run")
    until(lambda: world.site.state(last) == "COMPLETED", "the last flow run leaves by itself")
    assert "step 40/40" in world.driver.said("run")
    late = world.others["c"].call(sys.executable, "-m", "rollout.worker", "--root", ROOT, "--base", world.base())
    assert late.returncode == 0 and world.workers()[-1].state == "left", "one that comes too late leaves at once"
    accounted(world, tmp_path / "copy")


def test_what_the_run_asked_for_is_replaced_found_again_and_cancelled(world: World, tmp_path: Path) -> None:
    modules = [world.others[name].folder / "slow.py" for name in "ab"]
    for module in modules:
        module.unlink()
    driver = world.driver.start("run", *world.command())
    world.timed("machines lack the modules", lambda: "there is no file" in world.driver.said("run"))
    assert "copy the folder here and name it with --folder or HEADRACE_FOLDER; asking" in world.driver.said("run")
    for module in modules:
        shutil.copy(world.driver.folder / "slow.py", module)
    world.timed("the first worker joins", world.at_work)
    before = len(world.site.runs(world.deployment))
    kill_flow(world)
    world.timed("a killed flow run is replaced", lambda: len(world.site.runs(world.deployment)) == before + 1)
    world.timed("its successor is at work", lambda: len(world.at_work()) == 2)

    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    again = world.driver.start("again", *world.command())
    world.more_steps(2)
    second = world.site.runs(world.deployment)[-1]
    assert world.site.state(second) == "RUNNING", "the next driver finds what the killed one asked for"

    again.send_signal(signal.SIGINT)
    world.timed("the driver stops", lambda: again.poll() is not None)
    world.timed("its worker is cancelled", lambda: world.site.state(second) == "CANCELLED")
    until(lambda: not rollouts(world), "no orphan is left", 10)

    world.pace(0.0)
    last = world.driver.start("last", *world.command())
    world.timed("the run ends", lambda: last.poll() is not None, 600)
    assert last.poll() == 0, world.driver.said("last")
    states = [world.site.state(r) for r in world.site.runs(world.deployment)]
    assert states == ["FAILED"] * (before - 1) + ["CRASHED", "CANCELLED", "COMPLETED"]
    accounted(world, tmp_path / "copy")


def test_a_pool_without_a_worker_stops_the_run_with_a_hint(world: World) -> None:
    deploy(world.driver, "empty", "rollout-worker/empty")
    words = world.command("rollout.deployment=rollout-worker/empty", "rollout.join_seconds=5")
    driver = world.driver.start("run", *words)
    world.timed("the run stops", lambda: driver.poll() is not None)
    said = world.driver.said("run")
    assert driver.poll() == 1, said
    assert "no worker has joined run small for 5 s: is a Prefect worker started for the pool `empty`" in said
    assert "Traceback" not in said.rpartition("headrace: ")[2] and said.count("headrace: ") == 1
    assert [world.site.state(r) for r in world.site.runs("rollout-worker/empty")] == ["CANCELLED"]
