"""The real window, claim, shard, assembler, ledger and recovery code under a seeded simulator.

Every actor (learner, worker) is a greenlet on one virtual clock. Each store call is a place where an actor may be
killed (before or after the call took effect) or frozen for long, while its supervisor believes it dead and starts
another. The store itself fails now and then, loses answers, and damages shards.
"""

import functools
import hashlib
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any
from unittest import mock

import greenlet

from rollout import sealed
from rollout.claims import Assignment, ClaimBoard
from schemas import keys
from schemas.errors import Fenced, HeadraceError, RunStopped
from schemas.ledger import decode
from schemas.manifest import WeightsRef, Window, WorkerState
from schemas.trajectory import Status
from storage import audit, audit_log, control
from storage.memory import MemoryStore
from storage.objects import GenerationMismatch, ObjectExists, Stored
from storage.shards import END_MARKER, ShardWriter, UnreadableShard, WriterEnded, decode_shard
from support.protocol import BASE, METADATA, FakeUpdater, config, spec, trajectory
from trainer import recovery, tail
from trainer.learner import AgenticRLLearner
from trainer.publish import Publisher

CHAOS_ENDS = 600.0
"""Virtual seconds after which nobody is killed or frozen any more, so that every run can end."""
DEADLINE = 3000.0
FROZEN = (5, 40, 150, 600)
"""The longest spans, in virtual seconds, for which an actor may stand still."""
KILLS = {"L": (0.006, 0.003), "w": (0.002, 0.001)}
"""By kind of actor: how probable it is that it is killed, or frozen, before or after one store call."""
AT_THE_SWAP = 0.04
"""How probable it is that a learner freezes between publishing a policy and moving the window to it."""
FAILS, LOSES, DAMAGES = 0.0005, 0.01, 0.04
"""How probable it is that a store call fails for good, that a conditional write loses its answer, that a shard rots."""

remembered = functools.lru_cache(maxsize=4096)(decode_shard)
"""A shard is read by the learner, by heirs and by the audit; decoding it once makes the simulation twice as fast."""


class Violation(AssertionError):
    """An invariant of the protocol was broken."""


class StoreFailed(RunStopped):
    """The store gave up on a call: the process ends with that sentence."""


class Clock:
    """Virtual time, and the actors that wait on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], Any]]] = []
        self._order = itertools.count()

    def at(self, delay: float, act: Callable[[], Any]) -> None:
        heapq.heappush(self._queue, (self.now + delay, next(self._order), act))

    def step(self) -> bool:
        if not self._queue:
            return False
        self.now, _, act = heapq.heappop(self._queue)
        act()
        return True


class Actor:
    """One process: a greenlet that is resumed by the clock until it ends, is killed, or is frozen for a while."""

    def __init__(self, sim: "Simulation", name: str, body: Callable[[], str], ended: Callable[[str], None]) -> None:
        self.sim, self.name, self.alive, self.ended = sim, name, True, ended
        self._body = body
        self._greenlet = greenlet.greenlet(self._run)
        sim.clock.at(sim.random.random(), self.resume)

    def _run(self) -> None:
        try:
            outcome = self._body()
        except StoreFailed:
            outcome = "stopped by the store"
        self.alive = False
        self.ended(outcome)

    def resume(self) -> None:
        if self.alive:
            self.sim.current = self
            self._greenlet.switch()

    def sleep(self, seconds: float) -> None:
        """Called from inside: give the others their turn."""
        self.sim.clock.at(seconds, self.resume)
        self.sim.scheduler.switch()
        if not self.alive:
            raise greenlet.GreenletExit

    def kill(self) -> None:
        """Called from inside: the process ends here and now; nothing of it runs again."""
        self.alive = False
        self.sim.clock.at(0.0, lambda: self.ended("killed"))
        self.sim.graveyard.append(self._greenlet)
        self.sim.scheduler.switch()


class SimulatedStore(MemoryStore):
    """A store whose every call takes time and may be an actor's last."""

    def __init__(self, sim: "Simulation") -> None:
        super().__init__("simulation")
        self.sim = sim

    def _around(self, kind: str, key: str, call: Callable[[], Any]) -> Any:
        sim, actor = self.sim, self.sim.current
        if actor is None:
            return call()
        sim.disturb(actor, kind, key)
        actor.sleep(sim.random.expovariate(20.0))
        self._fail(actor)
        try:
            return call()
        finally:
            if actor.alive:
                sim.disturb(actor, "", key)

    def _fail(self, actor: Actor) -> None:
        """Maybe give up, as a store does whose retries have run into their deadline."""
        if self.sim.luck() < FAILS:
            self.sim.counts["store failed"] += 1
            raise StoreFailed(f"the store failed for {actor.name}")

    def put(self, key: str, data: bytes) -> int:
        return self._around("put", key, lambda: super(SimulatedStore, self).put(key, data))

    def create(self, key: str, data: bytes) -> int:
        def write() -> int:
            generation = super(SimulatedStore, self).create(key, data)
            return self._answered(key, data, generation, ObjectExists)

        return self._around("create", key, write)

    def swap(self, key: str, data: bytes, generation: int) -> int:
        def write() -> int:
            written = super(SimulatedStore, self).swap(key, data, generation)
            return self._answered(key, data, written, GenerationMismatch)

        return self._around("swap", key, write)

    def get(self, key: str) -> Any:
        return self._around("get", key, lambda: super(SimulatedStore, self).get(key))

    def list(self, prefix: str, after: str = "", limit: int | None = None) -> Any:
        return self._around("list", prefix, lambda: super(SimulatedStore, self).list(prefix, after, limit))

    def _answered(self, key: str, data: bytes, generation: int, lost: type[HeadraceError]) -> int:
        """The write took effect; its answer may get lost. The store's client then repeats the call and reads back."""
        sim = self.sim
        rots = key.startswith(f"{BASE}/trajectories/") and data != END_MARKER and sim.luck() < DAMAGES
        if rots:
            self._damage(key)
        sim.written(key)
        if rots or sim.luck() >= LOSES:
            return generation
        sim.counts["answer lost"] += 1
        self._fail_late()
        sim.current.sleep(sim.random.expovariate(0.2))
        if self._objects[key].data != data:
            raise lost(f"{key} was overwritten before its writer heard of it")
        return self._objects[key].generation

    def _fail_late(self) -> None:
        """One lost answer in four is never repeated."""
        if self.sim.random.random() < 0.25:
            raise StoreFailed("the answer to a write got lost")

    def _damage(self, key: str) -> None:
        """Cut an object short where it lies."""
        self.sim.counts["shard damaged"] += 1
        stored = self._objects[key]
        self._objects[key] = Stored(stored.data[: len(stored.data) // 2], stored.generation)


class Simulation:
    """One seeded run: its size, its actors, its accidents, and what is checked."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        r = self.random
        self.run_config = config(
            steps=r.choice([4, 6, 9]),
            groups_per_batch=r.choice([1, 2, 3]),
            group_size=r.choice([2, 3]),
            max_staleness=r.choice([0, 0, 1, 2, 4]),
            checkpoint_every=r.choice([1, 2, 4]),
            group_seconds=400.0,
            idle_seconds=1e9,
            max_empty_steps=1000,
            loss={"filter_zero_advantage": r.random() < 0.5},
            rollout={"lease_seconds": 20.0, "attempts": 2, "max_takeovers": 3, "seal_seconds": r.choice([1.0, 10.0])},
        )
        self.seed, self.clock, self.current = seed, Clock(), None
        self.chaos = r.choice([0.0, 0.3, 1.0, 1.0])
        self.store, self.scheduler = SimulatedStore(self), greenlet.getcurrent()
        self.graveyard: list[greenlet.greenlet] = []
        self.finished, self.counts, self._names = False, Counter(), itertools.count()
        self._learners: set[str] = set()
        self._claimed: set[int] = set()
        self._ended: set[int] = set()
        self._records = 0
        self._sealed: dict[tuple[int, int], float] = {}
        """(group, sample) → when its first successful row was sealed."""
        self._newest: tuple[int, int] = (-1, -1)
        self._wanted = r.choice([1, 2, 3])
        self._workers = 0

    # -- accidents --------------------------------------------------------------------------------------------

    def luck(self) -> float:
        """Even in [0, 1) where there is chaos, rarely small where there is less, never where there is none."""
        if self.clock.now > CHAOS_ENDS or not self.chaos or self.current is None:
            return 1.0
        return self.random.random() / self.chaos

    def disturb(self, actor: Actor, kind: str, key: str) -> None:
        """Maybe kill or freeze the actor that is about to call the store, or just has."""
        learner = actor.name.startswith("L")
        kill, freeze = KILLS[actor.name[0]]
        if kind == "swap" and learner:
            freeze = AT_THE_SWAP
        luck = self.luck()
        if luck < kill:
            self.counts[f"{actor.name[0]} killed"] += 1
            actor.kill()
        elif luck < kill + freeze:
            self.counts[f"{actor.name[0]} frozen"] += 1
            self.clock.at(self.random.uniform(1, 30), self.start_learner if learner else self.start_worker)
            actor.sleep(self.random.choice(FROZEN) * self.random.random())

    # -- actors -----------------------------------------------------------------------------------------------

    def start_learner(self) -> None:
        if self.finished:
            return
        name = f"L{next(self._names)}"
        self._learners.add(name)

        def ended(outcome: str) -> None:
            self._learners.discard(name)
            self.counts[outcome] += 1
            if outcome == "finished":
                self.finished = True
            elif not self._learners:
                self.clock.at(self.random.uniform(1, 15), lambda: None if self._learners else self.start_learner())

        actor = Actor(self, name, lambda: self._learn(name), ended)
        self._actors.append(actor)

    def _learn(self, name: str) -> str:
        actor = self.current

        def save(prefix: str, params: Any, origin: str) -> WeightsRef:
            self.store.put(f"{prefix}/weights", str(params).encode())
            return WeightsRef(prefix=prefix, sha256=hashlib.sha256(str(params).encode()).hexdigest(), origin=origin)

        keep = self.run_config.rl.max_staleness + 2
        learner = AgenticRLLearner(
            self.store,
            spec(self.run_config),
            BASE,
            FakeUpdater(self.store),
            Publisher(self.store, BASE, "test", name, save, "float32", keep=keep),
            report=lambda *_, **__: None,
            clock=lambda: self.clock.now,
            wall=lambda: self.clock.now,
            sleep=lambda seconds: actor.sleep(max(seconds, 1.0)),
        )
        try:
            return learner.run()
        except Fenced:
            return "fenced"

    def start_worker(self) -> None:
        if self.finished or self._workers > self._wanted + 3:
            return
        name = f"w{next(self._names)}"
        self._workers += 1

        def ended(outcome: str) -> None:
            self._workers -= 1
            self.counts[f"worker {outcome}"] += 1
            if not self.finished and outcome != "left":
                self.clock.at(self.random.uniform(1, 25), self.start_worker)

        self._actors.append(Actor(self, name, lambda: SimulatedWorker(self, name).run(), ended))

    # -- what is checked --------------------------------------------------------------------------------------

    def written(self, key: str) -> None:
        """Look at every conditional write as it happens."""
        if key == keys.window(BASE):
            self._check_window(Window.from_bytes(self.store._objects[key].data, key))
        elif key.startswith(f"{BASE}/claims/"):
            self._claimed.add(int(key.rsplit("/", 1)[1].removesuffix(".json")))
            self._check_claims()
        elif key.startswith(f"{BASE}/trajectories/"):
            self._note_rows(self.store._objects[key].data)

    def _note_rows(self, data: bytes) -> None:
        with suppress(UnreadableShard):
            for row in [] if data == END_MARKER else remembered(data)[1]:
                if not row.failed:
                    self._sealed.setdefault((row.group, row.sample), self.clock.now)

    def check_assignment(self, assignment: Assignment, asked: float) -> None:
        """No sample is played whose row was sealed before its group was asked for."""
        for sample in assignment.samples:
            if self._sealed.get((assignment.group, sample), asked) < asked:
                raise Violation(f"sample {sample} of group {assignment.group} is played though it was sealed")

    def _check_window(self, window: Window) -> None:
        if (window.version, window.limit) < self._newest:
            raise Violation(f"the window went back from {self._newest} to {(window.version, window.limit)}")
        self._newest = (window.version, window.limit)

    def _check_claims(self) -> None:
        rl = self.run_config.rl
        self._read_ledger()
        bound = (rl.max_staleness + 1) * rl.groups_per_batch
        if len(self._claimed - self._ended) > bound:
            raise Violation(f"{len(self._claimed - self._ended)} groups are claimed and open, the bound is {bound}")

    def _read_ledger(self) -> None:
        while (stored := self.store._objects.get(keys.ledger(BASE, self._records))) is not None:
            self._ended.update(decode(stored.data).ended_groups())
            self._records += 1

    def run(self) -> Counter:
        """Run to the end of the run and some time beyond, so that zombies wake; then audit everything."""
        with ExitStack() as stack:
            for module in (tail, sealed, recovery, audit_log):
                stack.enter_context(mock.patch.object(module, "decode_shard", remembered))
            self._run()
        return self.counts

    def _run(self) -> None:
        self._actors: list[Actor] = []
        self.store.create(keys.spec(BASE), spec(self.run_config).to_bytes())
        self.start_learner()
        for _ in range(self._wanted):
            self.start_worker()
        while not self.finished and self.clock.now < DEADLINE and self._step():
            pass
        if not self.finished:
            raise Violation(f"seed {self.seed}: stuck at {self.clock.now:.0f} s")
        end = self.clock.now + 1500
        while self.clock.now < end and self._step():
            pass
        self.current = None
        self.check()

    def _step(self) -> bool:
        self.current = None
        return self.clock.step()

    def check(self) -> None:
        """The audit's view of the store: nothing lost, nothing twice, staleness within its bound, chain whole."""
        found = audit.verify(self.store, "test")
        if found.violations:
            raise Violation(f"seed {self.seed}: {found.violations[0]}")
        (stage,) = found.stages
        self.counts.update(stage.dispositions)
        for ending, words in (("unused", "left over at the end"), ("stale", "dropped as stale")):
            if self.counts[ending]:
                raise Violation(f"seed {self.seed}: {self.counts[ending]} rows were {words}")


class SimulatedWorker:
    """A worker's protocol around episodes that only take time: the real claims and shards."""

    def __init__(self, sim: Simulation, name: str) -> None:
        self.sim, self.name, self.random = sim, name, random.Random(f"{sim.seed}/{name}")
        run = sim.run_config
        self.actor = sim.current
        self.board = ClaimBoard(sim.store, BASE, name, run, clock=lambda: sim.clock.now)
        self.writer = ShardWriter(
            sim.store,
            BASE,
            name,
            METADATA,
            seal_rows=4,
            seal_bytes=10**9,
            seal_seconds=run.rollout.seal_seconds,
            clock=lambda: sim.clock.now,
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
        self.board.watch(window, {group for group, _ in self.flying})
        if window.version > self.version:
            self.actor.sleep(self.random.expovariate(0.5))
            self.version = window.version
        while len({g for g, _ in self.flying}) < self.concurrency and self.version >= window.version:
            asked = self.sim.clock.now
            assignment = self.board.next(window)
            if assignment is None:
                break
            self.sim.check_assignment(assignment, asked)
            self.take_off(assignment)
        if self.writer.due(idle=not self.flying):
            self.writer.seal()
        return False

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
