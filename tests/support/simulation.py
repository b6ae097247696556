"""The real window, claim, shard, assembler, ledger and recovery code under a seeded simulator.

Every actor (learner, worker) is a greenlet on one virtual clock. Each store call is a place where an actor may be
killed (before or after the call took effect) or frozen for long, while its supervisor believes it dead and starts
another. The store itself fails now and then, loses answers, and damages shards.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from unittest import mock

import greenlet

from rollout import sealed
from schemas import keys
from storage import audit_log
from support.protocol import BASE, config, spec
from support.simulated_checks import SKEW, Checks, Violation
from support.simulated_learner import learn
from support.simulated_store import SimulatedStore, remembered
from support.simulated_worker import SimulatedWorker
from support.virtual import Actor, Clock
from trainer import recovery, tail

CHAOS_ENDS = 600.0
"""Virtual seconds after which nobody is killed or frozen any more, so that every run can end."""
DEADLINE = 3000.0
FROZEN = (5, 40, 150, 600)
"""The longest spans, in virtual seconds, for which an actor may stand still."""
KILLS = {"L": (0.006, 0.003), "w": (0.002, 0.001)}
"""By kind of actor: how probable it is that it is killed, or frozen, before or after one store call."""
AT_THE_SWAP = 0.04
"""How probable it is that a learner freezes between publishing a policy and moving the window to it."""


class Simulation:
    """One seeded run: its size, its actors, its accidents, and what is checked."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        r = self.random
        self.patient = r.random() < 0.7
        """A group's deadline is far: only what nothing else can end may meet it."""
        self.run_config = config(
            steps=r.choice([4, 6, 9]),
            groups_per_batch=r.choice([1, 2, 3]),
            group_size=r.choice([2, 3]),
            max_staleness=r.choice([0, 0, 1, 2, 4]),
            checkpoint_every=r.choice([1, 2, 4]),
            group_seconds=1300.0 if self.patient else r.choice([60.0, 150.0, 400.0]),
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
        self.checks = Checks(self)
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

    def clocks(self, name: str) -> tuple[Callable[[], float], Callable[[], float]]:
        """A process's monotonic clock, which starts anywhere, and its machine's wall clock, which is off."""
        r = random.Random(f"{self.seed}/{name}/clocks")
        start, skew = r.uniform(0, 1e6), r.uniform(-SKEW, SKEW)
        return lambda: start + self.clock.now, lambda: 1e9 + skew + self.clock.now

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

        Actor(self, name, lambda: learn(self, name), ended)

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

        Actor(self, name, lambda: SimulatedWorker(self, name).run(), ended)

    # -- the run ----------------------------------------------------------------------------------------------

    def run(self) -> Counter:
        """Run to the end of the run and some time beyond, so that zombies wake; then audit everything."""
        with ExitStack() as stack:
            for module in (tail, sealed, recovery, audit_log):
                stack.enter_context(mock.patch.object(module, "decode_shard", remembered))
            self._run()
        return self.counts

    def _run(self) -> None:
        self.store.create(keys.spec(BASE), spec(self.run_config).to_bytes())
        self.start_learner()
        for _ in range(self._wanted):
            self.start_worker()
        while not self.finished and self.clock.now < DEADLINE and self._step():
            pass
        if not self.finished:
            raise Violation(f"stuck at {self.clock.now:.0f} s")
        end = self.clock.now + 1500
        while self.clock.now < end and self._step():
            pass
        self.current = None
        self.checks.end()

    def _step(self) -> bool:
        self.current = None
        return self.clock.step()


def run_seeds(first: int, end: int) -> Counter:
    """Run these seeds one after the other; what happened in all of them."""
    counts: Counter = Counter()
    for seed in range(first, end):
        try:
            counts.update(Simulation(seed).run())
        except Exception as error:
            raise Violation(f"seed {seed}: {error}") from error
    return counts
