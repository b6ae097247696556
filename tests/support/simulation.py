"""The real window, claim, shard, assembler, ledger and recovery code under a seeded simulator.

Every actor (learner, worker) is a greenlet on one virtual clock. Each store call is a place where an actor may be
killed (before or after the call took effect) or frozen for long, while its supervisor believes it dead and starts
another. The store itself fails now and then, loses answers, and damages shards.
"""

import hashlib
import itertools
import random
from collections import Counter
from contextlib import ExitStack, suppress
from typing import Any
from unittest import mock

import greenlet

from rollout import sealed
from rollout.claims import Assignment
from schemas import keys
from schemas.errors import Fenced
from schemas.ledger import decode
from schemas.manifest import Claim, WeightsRef, Window
from storage import audit, audit_log
from storage.shards import END_MARKER, UnreadableShard
from support.protocol import BASE, FakeUpdater, config, spec
from support.simulated_store import SimulatedStore, remembered
from support.simulated_worker import SimulatedWorker
from support.virtual import Actor, Clock
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


class Violation(AssertionError):
    """An invariant of the protocol was broken."""


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
        if not self.finished and self._waits_for_a_deadline():
            self.counts["waits for rl.group_seconds"] += 1
        elif not self.finished:
            raise Violation(f"stuck at {self.clock.now:.0f} s")
        end = self.clock.now + 1500
        while self.clock.now < end and self._step():
            pass
        self.current = None
        self.check()

    def _step(self) -> bool:
        self.current = None
        return self.clock.step()

    def _waits_for_a_deadline(self) -> bool:
        """Whether a living owner's shard rotted when its group could not be taken over any more: time alone ends it."""
        self.current, alive = None, {a.name for a in self._actors if a.alive}
        limit = self.run_config.rollout.max_takeovers
        claims = [Claim.from_bytes(self.store.get(k).data, k) for k in self.store.list(f"{BASE}/claims/")]
        stuck = [c for c in claims if c.group not in self._ended and c.takeovers >= limit]
        return bool(self.counts["shard damaged"]) and any(c.owner in alive for c in stuck)

    def check(self) -> None:
        """The audit's view of the store: nothing lost, nothing twice, staleness within its bound, chain whole."""
        found = audit.verify(self.store, "test")
        if found.violations:
            raise Violation(f"{found.violations[0]}")
        (stage,) = found.stages
        self.counts.update(stage.dispositions)
        for ending, words in (("unused", "left over at the end"), ("stale", "dropped as stale")):
            if self.counts[ending]:
                raise Violation(f"{self.counts[ending]} rows were {words}")


def run_seeds(first: int, end: int) -> Counter:
    """Run these seeds one after the other; what happened in all of them."""
    counts: Counter = Counter()
    for seed in range(first, end):
        try:
            counts.update(Simulation(seed).run())
        except Exception as error:
            raise Violation(f"seed {seed}: {error}") from error
    return counts
