"""How far a run has come, read from manifests alone. What to do next follows from it; nothing else remembers progress.

A stage's key needs the digests of its inputs, so a stage whose inputs are not made yet has no key yet.
"""

from dataclasses import dataclass
from typing import Literal

from schemas import keys, seeds
from schemas.evaluation import EvaluationReport
from schemas.manifest import RLManifest, RunManifest, StageManifest, WeightsRef
from schemas.promotion import Channel, GateDecision
from storage.documents import read_document
from storage.objects import ObjectStore
from tasks import decisions, plan, registry
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
class Evaluation:
    """Playing one task set with one set of weights. `setting` names the task set (`evaluation.tasks`, …)."""

    name: str
    setting: str
    checkpoint: str
    weights: WeightsRef
    temperature: float
    samples: int
    seed: int
    key: str
    report: EvaluationReport | None = None


@dataclass(frozen=True)
class Survey:
    """The whole run. `evaluations` and `gate` come once there is a candidate."""

    warm_ups: tuple[Stage, ...]
    rl: Stage
    evaluations: tuple[Evaluation, ...]
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
    if rl.weights is None or rl.parent is None:
        return Survey(warm_ups, rl, (), "", None, False)
    key = gate_key(request, rl.weights)
    made = decisions.newest(request.store, keys.gate(request.run, key))
    settled = made is not None and decisions.is_settled(_channel(request), *made)
    return Survey(warm_ups, rl, tuple(reported(request, rl)), key, made[1] if made else None, settled)


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


def reported(request: Request, rl: Stage) -> list[Evaluation]:
    """The evaluations whose figures are reported: where RL started and where it ended."""
    pairs = [("warm-up", _origin(rl.parent), rl.parent), ("candidate", rl.ref, rl.weights)]
    return [e for name, ref, weights in pairs if weights is not None for e in figures(request, name, ref, weights)]


def figures(request: Request, name: str, ref: str, weights: WeightsRef) -> list[Evaluation]:
    """The figures that are reported of some weights: the held-out tasks at every temperature, and every suite."""
    return held_out(request, name, ref, weights) + [
        on_suite(request, suite.name, name, ref, weights) for suite in request.config.evaluation.suites
    ]


def held_out(request: Request, name: str, ref: str, weights: WeightsRef) -> list[Evaluation]:
    """The evaluations on `evaluation.tasks`, one for every temperature."""
    settings = request.config.evaluation
    return [
        evaluation(request, name, "evaluation.tasks", ref, weights, temperature, settings.samples)
        for temperature in settings.temperatures
    ]


def on_suite(request: Request, suite: str, name: str, ref: str, weights: WeightsRef) -> Evaluation:
    """The evaluation on one of `evaluation.suites`."""
    found = next(s for s in request.config.evaluation.suites if s.name == suite)
    return evaluation(request, name, found.setting, ref, weights, found.temperature, found.samples)


def evaluation(
    request: Request, name: str, setting: str, ref: str, weights: WeightsRef, temperature: float, samples: int
) -> Evaluation:
    """One evaluation with its key and, if it has been made, its report."""
    seed = seeds.derive(setting, request.seed)
    key = plan.evaluation_key(
        request.config,
        weights=weights.sha256,
        tasks=request.data[setting].sha256,
        environment=request.environment_sha256,
        temperature=temperature,
        samples=samples,
        seed=seed,
    )
    report = read_report(request.store, keys.evaluation(request.run, key))
    return Evaluation(name, setting, ref, weights, temperature, samples, seed, key, report)


def read_report(store: ObjectStore, output: str) -> EvaluationReport | None:
    """The report of an evaluation's folder, if it is finished."""
    key = f"{output}/report.json"
    return read_document(store, EvaluationReport, key)


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


def _origin(weights: WeightsRef | None) -> str:
    return (weights.origin or weights.prefix) if weights else ""
