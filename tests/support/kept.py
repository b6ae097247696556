"""Runs with many checkpoints for `headrace gc`: the real learner around fake arrays, and a `run.json` above it."""

from typing import Any

from schemas import keys
from schemas.config import Run
from schemas.digest import digest
from schemas.manifest import RLManifest, RunManifest, WeightsRef
from schemas.promotion import Channel, Promotion
from storage.memory import MemoryStore
from storage.objects import ObjectStore
from support.audited import end, turn
from support.protocol import BASE, FakeUpdater, FakeWorker, config, learner, spec
from tasks.expiry_plan import Item, RunPlan
from trainer.learner import AgenticRLLearner
from trainer.recovery import newest_checkpoint
from trainer.replay_process import Replay, replay_checkpoint

DAYS = 86400.0


def settings(steps: int, retention: dict[str, Any], **rl: Any) -> Run:
    run = config(steps=steps, **rl)
    return run.model_copy(update={"retention": run.retention.model_validate(retention)})


def write_run(store: ObjectStore, run: Run, name: str = "test", initial: WeightsRef | None = None) -> None:
    plain = run.model_dump(mode="json")
    manifest = RunManifest(
        run=name, config=plain, config_digest=digest(plain), seed=7, code="0", python="3", created=0.0, initial=initial,
        rl_keys=("0123",) if name == "test" else (),
    )  # fmt: skip
    store.put(keys.run_manifest(name), manifest.to_bytes())


def trained(store: ObjectStore, run: Run, until: int) -> tuple[AgenticRLLearner, list[FakeWorker]]:
    """A run that has come so far."""
    write_run(store, run)
    store.create(keys.spec(BASE), spec(run).to_bytes())
    made = learner(store, run)
    made.recover()
    workers = [FakeWorker(store, run, "w0"), FakeWorker(store, run, "w1")]
    turn(made, workers, until)
    return made, workers


def finished(store: ObjectStore, run: Run) -> None:
    """A run at its end, with the stage's manifest."""
    made, workers = trained(store, run, run.rl.steps)
    end(made, workers)
    write_end(store, made)


def write_end(store: ObjectStore, made: AgenticRLLearner) -> None:
    last, progress = newest_checkpoint(store, BASE), made.progress
    assert last is not None
    manifest = RLManifest(
        key="0123", steps=progress.step, version=progress.version, checkpoint=last.step, weights=last.policy,
        ledger_head=progress.head, dispositions=progress.dispositions, started=0.0, ended=1.0,
    )  # fmt: skip
    store.put(keys.rl_manifest(BASE), manifest.to_bytes())


def crown(store: ObjectStore, *promoted: tuple[str, WeightsRef], channel: str = "production") -> None:
    """Let a channel's history be these (ref, weights)."""
    entries = tuple(
        Promotion(ref=ref, weights=weights, ledger_head="", report="", previous="", reason="", time=0.0)
        for ref, weights in promoted
    )
    store.put(keys.channel("test", channel), Channel(name="test", channel=channel, history=entries).to_bytes())


def chosen(plan: RunPlan, *, kept: bool) -> list[Item]:
    return [i for i in plan.items if i.kept == kept]


def retrained(store: ObjectStore, run: Run, step: int) -> Replay:
    """What `audit replay` makes of a checkpoint."""
    updater = FakeUpdater(store)
    return replay_checkpoint(store, spec(run), BASE, step, updater, report=lambda *_, **__: None)


def copy(store: MemoryStore) -> MemoryStore:
    """The same objects in another store, as old as there."""
    made = MemoryStore("copy")
    for key in store.list(""):
        made.put(key, store.get(key).data)
        made._times[key] = store._times[key]
    return made
