"""A learner under the simulator: the real one, around an updater whose replay goes wrong now and then."""

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from schemas import keys
from schemas.errors import Fenced, RunStopped
from schemas.manifest import WeightsRef
from support.protocol import BASE, FakeUpdater, spec
from trainer.assembler import Row
from trainer.learner import AgenticRLLearner
from trainer.publish import Publisher

if TYPE_CHECKING:
    from support.simulation import Simulation

FLIPS = 0.01
"""How probable it is that replaying a step gives other bytes, as with a bad memory chip."""


class SimulatedUpdater(FakeUpdater):
    """Writes its name beside what it saves, so that torn folders show; its replay may give other bytes."""

    def __init__(self, sim: "Simulation", name: str) -> None:
        super().__init__(sim.store)
        self.sim, self.name, self.flipped = sim, name, False
        self.replayed: Callable[[], bool] = lambda: False
        """Whether the update under way is a replayed one whose policy has been published."""

    def update(self, rows: tuple[Row, ...], advantages: tuple[float, ...]) -> dict[str, float]:
        learned = super().update(rows, advantages)
        if self.replayed() and self.sim.luck() < FLIPS:
            self.params, self.flipped = f"{self.params}?", True
        return learned

    def save(self, step: int, learner: str) -> tuple[str, dict[str, str], str]:
        saved = super().save(step, learner)
        self.store.put(f"{saved[0]}/author", self.name.encode())
        return saved


def learn(sim: "Simulation", name: str) -> str:
    """One learner process; returns how it ended."""
    actor, run = sim.current, sim.run_config
    assert actor is not None
    monotonic, wall = sim.clocks(name)

    def save(prefix: str, params: Any, origin: str) -> WeightsRef:
        sim.store.put(f"{prefix}/weights", str(params).encode())
        sim.store.put(f"{prefix}/author", name.encode())
        return WeightsRef(prefix=prefix, sha256=hashlib.sha256(str(params).encode()).hexdigest(), origin=origin)

    def sleep(seconds: float) -> None:
        sim.checks.waits(name, learner, max(seconds, 1.0))
        actor.sleep(max(seconds, 1.0))

    updater = SimulatedUpdater(sim, name)
    learner = AgenticRLLearner(
        sim.store,
        spec(run),
        BASE,
        updater,
        Publisher(sim.store, BASE, "test", name, save, "float32", keep=run.rl.max_staleness + 2),
        report=lambda *_, **__: None,
        clock=monotonic,
        wall=wall,
        sleep=sleep,
    )

    def replayed() -> bool:
        following = keys.policy_manifest(BASE, learner.progress.version + 1)
        return learner.published is None and following in sim.store._objects

    updater.replayed = replayed
    try:
        return learner.run()
    except Fenced:
        return "fenced"
    except RunStopped as stopped:
        if updater.flipped and "gave other weights" in str(stopped):
            return "replay differed"
        raise
