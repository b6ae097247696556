"""A worker without an engine under the simulator: episodes only take time, claims and shards are the real ones."""

import random
from typing import TYPE_CHECKING

from rollout.claims import Assignment, ClaimBoard
from schemas import keys
from schemas.manifest import PolicyManifest, Window, WorkerState
from schemas.trajectory import Status
from storage import control
from storage.objects import find
from storage.shards import ShardWriter, WriterEnded
from support.protocol import BASE, METADATA, trajectory

if TYPE_CHECKING:
    from support.simulation import Simulation


class SimulatedWorker:
    """A worker's protocol around episodes that only take time: the real claims and shards."""

    def __init__(self, sim: "Simulation", name: str) -> None:
        self.sim, self.name, self.random = sim, name, random.Random(f"{sim.seed}/{name}")
        run = sim.run_config
        self.actor = sim.current
        monotonic, wall = sim.clocks(name)
        self.board = ClaimBoard(sim.store, BASE, name, run, monotonic, wall)
        self.writer = ShardWriter(
            sim.store,
            BASE,
            name,
            METADATA,
            seal_rows=4,
            seal_bytes=10**9,
            seal_seconds=run.rollout.seal_seconds,
            clock=monotonic,
        )
        self.flying: dict[tuple[int, int], tuple[float, int, int]] = {}
        """(group, sample) → when it ends, attempt, policy version."""
        self.version, self.beats = -1, 0
        self.concurrency = self.random.choice([1, 2, 4])

    def run(self) -> str:
        sim = self.sim
        state, beaten = self.register(), sim.clock.now
        try:
            while True:
                if sim.clock.now - beaten > 5:
                    beaten, self.beats = sim.clock.now, self.beats + 1
                    control.beat(sim.store, BASE, state.model_copy(update={"beat": self.beats}))
                found = control.read_window(sim.store, BASE)
                if found is not None and self.round(found[0]):
                    self.writer.seal()
                    control.beat(sim.store, BASE, state.model_copy(update={"beat": self.beats + 1, "state": "left"}))
                    return "left"
                self.actor.sleep(0.5 + self.random.random() / 2)
        except WriterEnded:
            return "ended"

    def register(self) -> WorkerState:
        return control.register_worker(self.sim.store, BASE, worker=self.name, host="h", pid=1)

    def round(self, window: Window) -> bool:
        """One look at everything; True when the window has closed."""
        self.land(window)
        if window.closed:
            return True
        self.watch(window)
        if window.version > self.version:
            self.load(window.version)
        while len({g for g, _ in self.flying}) < self.concurrency and self.version >= window.version:
            asked = self.sim.clock.now
            assignment = self.board.next(window)
            if assignment is None:
                break
            self.sim.checks.assignment(assignment, asked)
            self.take_off(assignment)
        if self.writer.due(idle=not self.flying):
            self.writer.seal()
        return False

    def watch(self, window: Window) -> None:
        asked, before = self.sim.clock.now, self.board._looked
        self.board.watch(window, {group for group, _ in self.flying})
        if self.board._looked != before:
            self.sim.checks.orphans(self.name, [claim for claim, _ in self.board._orphans], asked)

    def load(self, version: int) -> None:
        """Fetch a policy; where its weights are gone the window must have moved on by then."""
        key = keys.policy_manifest(BASE, version)
        manifest = PolicyManifest.from_bytes(self.sim.store.get(key).data, key)
        self.actor.sleep(self.random.expovariate(0.5))
        if find(self.sim.store, f"{manifest.weights.prefix}/weights") is not None:
            self.version = version
            return
        now = control.read_window(self.sim.store, BASE)
        if now is None or now[0].version == version:
            self.sim.checks.lost_policy(version)

    def take_off(self, assignment: Assignment) -> None:
        for sample in assignment.samples:
            ends = self.ends(assignment.group)
            self.flying[assignment.group, sample] = (ends, assignment.first_attempt, self.version)

    def ends(self, group: int) -> float:
        slow = 8.0 if self.kind(group) == "slow" else 1.0
        return self.sim.clock.now + min(self.random.paretovariate(1.3) * 3 * slow, 150)

    def kind(self, group: int) -> str:
        luck = random.Random(self.sim.seed * 7919 + group).random()
        return "poison" if luck < 0.04 else "level" if luck < 0.2 else "slow" if luck < 0.3 else "plain"

    def land(self, window: Window) -> None:
        for (group, sample), (end, attempt, version) in list(self.flying.items()):
            if group < window.low or group in window.ended:
                del self.flying[group, sample]
            elif end <= self.sim.clock.now:
                self.landed(group, sample, attempt, version)

    def landed(self, group: int, sample: int, attempt: int, version: int) -> None:
        kind = self.kind(group)
        failed = kind == "poison" or self.random.random() < 0.05
        reward = 1.0 if kind == "level" else float(sample % 2)
        status = Status.ENVIRONMENT_ERROR if failed else Status.SUCCEEDED
        made = trajectory(
            group, sample, attempt=attempt, version=version, worker=self.name, reward=reward, status=status
        )
        self.writer.add(made)
        del self.flying[group, sample]
        attempts = self.sim.run_config.rollout.attempts
        if failed and attempt % attempts < attempts - 1:
            self.flying[group, sample] = (self.ends(group), attempt + 1, self.version)
