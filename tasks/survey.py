"""How far a run has come, read from manifests alone. What to do next follows from it; nothing else remembers progress.

A stage's key needs the digests of its inputs, so a stage whose inputs are not made yet has no key yet.
"""

from dataclasses import dataclass
from typing import Literal

from schemas import keys, seeds
from schemas.manifest import RLManifest, RunManifest, StageManifest, WeightsRef
from schemas.promotion import Channel, GateDecision
from storage.documents import read_document
from storage.objects import ObjectStore
from tasks import decisions, plan, registry
from tasks.figures import Evaluation
from tasks.planned import planned
from tasks.request import Request

State = Literal["waiting", "ready", "finished"]


@dataclass(frozen=True)
class Stage:
    """One stage of a run. `waiting`: its inputs are not there; `ready`: it can be done; `weights`: what it made."""

    name: str
    kind: str
    key: str
    state: State
    weights: WeightsRef | None = None
    ref: str = ""
    """How people call its weights: `stages/…` or `RUN@STEP`."""
    parent: WeightsRef | None = None


@dataclass(frozen=True)
class Survey:
    """The whole run. The gate comes once there is a candidate."""

    warm_ups: tuple[Stage, ...]
    rl: Stage
    evaluations: tuple[Evaluation, ...]
    """What is reported, made or not, of the weights that are there by now."""
    expired: tuple[str, ...]
    """What can't be reported any more, in sentences."""
    gate_key: str
    decision: GateDecision | None
    settled: bool
    """The gate has decided, and what it promoted stands in the registry."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        return (*self.warm_ups, self.rl)

    @property
    def finished(self) -> bool:
        return self.rl.state == "finished" and self.settled and all(e.report for e in self.evaluations)


def survey(request: Request, record: RunManifest) -> Survey:
    """Read the manifests of every stage that can be named."""
    warm_ups = tuple(_warm_ups(request, record))
    rl = _rl(request, warm_ups[-1] if warm_ups else None, record)
    found = planned(request, rl.key, rl.parent, (rl.ref, rl.weights) if rl.weights else None)
    if rl.weights is None:
        return Survey(warm_ups, rl, found.evaluations, found.expired, "", None, False)
    key = gate_key(request, rl.weights)
    made = decisions.newest(request.store, keys.gate(request.run, key))
    settled = made is not None and decisions.is_settled(_channel(request), *made)
    decision = made[1] if made else None
    return Survey(warm_ups, rl, found.evaluations, found.expired, key, decision, settled)


def gate_key(request: Request, candidate: WeightsRef) -> str:
    """The key of the gate's decision on these weights."""
    kept = [s for s in request.config.evaluation.suites if s.name in request.config.promotion.no_regression]
    return plan.gate_key(
        request.config,
        candidate=candidate.sha256,
        tasks=request.data["promotion.tasks"].sha256,
        suites={suite.name: request.data[suite.setting].sha256 for suite in kept},
        seed=seeds.derive("gate", request.seed),
    )


def _warm_ups(request: Request, record: RunManifest) -> list[Stage]:
    """The warm-up stages. A run that starts from the champion has none: the champion has been through them."""
    parent = record.initial
    if parent is not None and request.config.model.path == "champion":
        return []
    found: list[Stage] = []
    config, seed = request.config, request.warm_up_seed
    if parent is None and not config.warm_up:
        return [_stage(request.store, "scratch", "scratch", plan.scratch_key(config, seed), None)]
    for stage in config.warm_up:
        if found and found[-1].weights is None:
            found.append(Stage(stage.name, stage.kind, "", "waiting"))
            continue
        data = request.data[f"warm_up.{stage.name}"].sha256
        key = plan.warm_up_key(config, stage, data=data, parent=parent.sha256 if parent else "", seed=seed)
        found.append(_stage(request.store, stage.name, stage.kind, key, parent))
        parent = found[-1].weights
    return found


def _stage(store: ObjectStore, name: str, kind: str, key: str, parent: WeightsRef | None) -> Stage:
    made = read_document(store, StageManifest, keys.stage_manifest(name, key))
    weights = made.weights if made else None
    return Stage(name, kind, key, "finished" if made else "ready", weights, keys.stage(name, key), parent)


def _rl(request: Request, last: Stage | None, record: RunManifest) -> Stage:
    start = last.weights if last else record.initial
    if start is None:
        return Stage("rl", "rl", "", "waiting")
    key = plan.rl_key(
        request.config,
        tasks=request.data["rl.tasks"].sha256,
        environment=request.environment_sha256,
        initial=start.sha256,
        seed=request.seed,
    )
    manifest = read_rl(request.store, keys.rl(request.run, key))
    if manifest is None or manifest.steps < request.config.rl.steps:
        return Stage("rl", "rl", key, "ready", parent=start)
    return Stage("rl", "rl", key, "finished", manifest.weights, f"{request.run}@{manifest.checkpoint}", start)


def read_rl(store: ObjectStore, base: str) -> RLManifest | None:
    """The manifest of an RL stage that has finished (it may be continued with more steps)."""
    key = keys.rl_manifest(base)
    return read_document(store, RLManifest, key)


def _channel(request: Request) -> Channel:
    return registry.read(request.store, request.config.registry_name, request.config.promotion.channel)[0]
