"""Evaluations: which task sets are played with which weights, each with its key and, once it is made, its report."""

from dataclasses import dataclass

from schemas import keys, seeds
from schemas.evaluation import EvaluationReport
from schemas.manifest import WeightsRef
from storage.documents import read_document
from storage.objects import ObjectStore
from tasks import plan
from tasks.request import Request


@dataclass(frozen=True)
class Evaluation:
    """Playing one task set with one set of weights. `setting` names the task set (`evaluation.tasks`, …)."""

    name: str
    """What is played, for people: `warm-up`, `step 20`, `candidate`, `champion`."""
    setting: str
    checkpoint: str
    weights: WeightsRef
    temperature: float
    samples: int
    seed: int
    key: str
    report: EvaluationReport | None = None


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
    return read_document(store, EvaluationReport, keys.evaluation_report(output))
