"""A learner without arrays and a worker without an engine: the real protocol code around fakes."""

import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas import keys, seeds
from schemas.config import Run
from schemas.manifest import CheckpointManifest, Numerics, Probe, RLSpec, WeightsRef
from schemas.trajectory import ShardMetadata, Status, Trajectory, Turn
from storage import control
from storage.objects import ObjectStore
from storage.shards import ShardWriter
from support.configuration import small
from trainer.assembler import Row
from trainer.learner import AgenticRLLearner
from trainer.publish import Publisher

METADATA = ShardMetadata(tokenizer="t", chat_format="c", code="0", engine="fake")
BASE = "runs/test/rl-0123"
NUMERICS = Numerics(jax="", jaxlib="", xla_flags="", device_kind="cpu", device_count=1, cores=1)


def config(**rl: Any) -> Run:
    """A small run with these settings of `rl`, and of `rollout` under that name."""
    rollout = rl.pop("rollout", {})
    return small(rollout=rollout, rl={"checkpoint_every": 2, "window_seconds": 0, **rl})


def spec(run: Run) -> RLSpec:
    return RLSpec(
        run="test",
        key="0123",
        config=run.model_dump(mode="json"),
        folder=".",
        seed=7,
        initial=WeightsRef(prefix="initial", sha256="0" * 64),
        tasks="data/x.jsonl",
        tasks_sha256="x",
        environment_sha256="",
    )


def trajectory(
    group: int, sample: int, *, attempt: int = 0, version: int = 0, worker: str = "w", **changes: Any
) -> Trajectory:
    """A short trajectory; changes go to its fields."""
    values: dict[str, Any] = {
        "id": f"{group}-{sample}-{attempt}",
        "run": "test",
        "group": group,
        "sample": sample,
        "attempt": attempt,
        "task_id": f"task-{group}",
        "task_digest": "d",
        "seed": seeds.request(7, group, sample, attempt, 0),
        "worker": worker,
        "tokens": (1, 2, 3, 4),
        "mask": (False, False, True, True),
        "logprobs": (0.0, 0.0, -0.5, -0.25),
        "version_starts": (2,),
        "versions": (version,),
        "segment_starts": (0,),
        "turns": (Turn(2, 4, 1.0, 0.1, 0.0, 0.0),),
        "reward": float(sample % 2),
        "components": (("exact_match", float(sample % 2)),),
        "status": Status.SUCCEEDED,
        "detail": "",
        "generate_seconds": 0.1,
        "tool_seconds": 0.0,
        "queue_seconds": 0.0,
        "messages": "[]",
        "sampling": "{}",
    }
    return Trajectory(**(values | changes))


class FakeUpdater:
    """Its one parameter is a digest of everything it was trained on, in order."""

    def __init__(self, store: ObjectStore, base: str = BASE) -> None:
        self.store, self.base = store, base
        self.params: Any = "start"
        self.updates = 0
        self.environment = NUMERICS

    def update(self, rows: tuple[Row, ...], advantages: tuple[float, ...]) -> dict[str, float]:
        batch = json.dumps([[r.digest for r in rows], advantages])
        self.params = hashlib.sha256(f"{self.params}{batch}".encode()).hexdigest()
        self.updates += 1
        return {"loss": 0.0, "mismatch_kl": int(self.params[:4], 16) / 2**16}

    def reference_gap(self, rows: tuple[Row, ...]) -> NDArray[np.float64]:
        return np.array([r.trajectory.sample / 8 for r in rows])

    def probe(self) -> Probe:
        return Probe(tokens=(1, 2), logprobs=(-1.0,))

    def params_digest(self) -> str:
        return hashlib.sha256(str(self.params).encode()).hexdigest()

    def optimizer_digest(self) -> str:
        return hashlib.sha256(f"optimizer of {self.params}".encode()).hexdigest()

    def save(self, step: int, learner: str) -> tuple[str, dict[str, str], str]:
        prefix = keys.checkpoint_files(self.base, step, learner)
        self.store.put(f"{prefix}/params", str(self.params).encode())
        return prefix, {"params": self.params_digest()}, self.optimizer_digest()

    def load(self, manifest: CheckpointManifest) -> None:
        self.params = self.store.get(f"{manifest.prefix}/params").data.decode()
        assert self.params_digest() == manifest.params_sha256

    def numerics(self) -> Numerics:
        return self.environment


def learner(store: ObjectStore, run: Run, name: str = "L1", **options: Any) -> AgenticRLLearner:
    """A learner on the run's RL stage, not yet recovered. Its events are kept in `.events`."""
    updater = FakeUpdater(store)

    def save(prefix: str, params: Any, origin: str) -> WeightsRef:
        store.put(f"{prefix}/weights", str(params).encode())
        return WeightsRef(prefix=prefix, sha256=hashlib.sha256(str(params).encode()).hexdigest(), origin=origin)

    publisher = Publisher(store, BASE, "test", name, save, "float32", keep=run.rl.max_staleness + 2)
    events: list[dict[str, Any]] = []
    report = options.pop("report", lambda event, **fields: events.append({"event": event, **fields}))
    made = AgenticRLLearner(store, spec(run), BASE, updater, publisher, report=report, **options)
    made.events = events  # type: ignore[attr-defined]
    return made


class FakeWorker:
    """Claims groups as the window allows and writes their rows at once."""

    def __init__(self, store: ObjectStore, run: Run, name: str = "w0") -> None:
        self.store, self.run, self.name = store, run, name
        self.state = control.register_worker(store, BASE, worker=name, host="h", pid=1)
        self.writer = ShardWriter(store, BASE, name, METADATA, seal_rows=999, seal_bytes=10**9, seal_seconds=0)

    def work(self, groups: int = 10**6) -> list[int]:
        """Claim and finish up to so many groups; returns their numbers."""
        found = control.read_window(self.store, BASE)
        if found is None:
            return []
        window, done = found[0], []
        for group in range(window.low, window.limit):
            if len(done) == groups or window.closed:
                break
            if group not in window.ended and control.create_claim(self.store, BASE, group, self.name, window.version):
                self.write(group, window.version)
                done.append(group)
        return done

    def write(self, group: int, version: int, **changes: Any) -> None:
        for sample in range(self.run.rl.group_size):
            self.writer.add(trajectory(group, sample, version=version, worker=self.name, **changes))
        self.writer.seal()

    def leave(self) -> None:
        self.state = self.state.model_copy(update={"state": "left", "beat": self.state.beat + 1})
        control.beat(self.store, BASE, self.state)
