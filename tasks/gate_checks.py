"""The conditions of the gate, one function each: what was found against what is wanted, in a `Check`."""

from dataclasses import dataclass

from schemas import seeds
from schemas.config import Promotion
from schemas.errors import AuditViolation, RunStopped
from schemas.evaluation import EvaluationReport
from schemas.manifest import CheckpointManifest
from schemas.promotion import Check
from storage import audit
from storage.objects import ObjectStore
from tasks.figures import Evaluation


@dataclass(frozen=True)
class Match:
    """The candidate and its baseline on one task set, played alike; `suite` is empty for the gate's own tasks."""

    candidate: Evaluation
    baseline: Evaluation
    suite: str = ""

    @property
    def evaluations(self) -> tuple[Evaluation, Evaluation]:
        return self.candidate, self.baseline


@dataclass(frozen=True)
class Difference:
    """How much better the candidate is, paired by task: the mean and its interval. The words say who was compared."""

    mean: float
    low: float
    high: float
    candidate: str
    baseline: str

    def text(self, verdict: str, wanted: str) -> str:
        """The whole sentence."""
        return f"{self.candidate} {verdict} {self.baseline}, wanted {wanted}"


def compare(
    settings: Promotion, seed: int, match: Match, candidate: EvaluationReport, baseline: EvaluationReport
) -> Difference:
    """Paired bootstrap over tasks. RunStopped where the two reports do not speak of the same tasks."""
    from rollout.statistics import paired_bootstrap

    if candidate.scores.keys() != baseline.scores.keys():
        raise RunStopped("the gate's two reports do not speak of the same tasks: evaluate again")
    names = sorted(candidate.scores)
    mean, low, high = paired_bootstrap(
        [candidate.scores[n] for n in names],
        [baseline.scores[n] for n in names],
        resamples=settings.resamples,
        confidence=settings.confidence,
        seed=seeds.derive("gate", seed),
    )
    where = f"{len(names)} problems of suite {match.suite}" if match.suite else f"{len(names)} gate problems"
    against = (
        f"the {match.baseline.name} {match.baseline.checkpoint} ({baseline.success:.1%}) on {where}: {mean:+.1%}, "
        f"{settings.confidence:.0%} interval {low:+.1%} to {high:+.1%}"
    )
    return Difference(mean, low, high, f"{match.candidate.checkpoint} ({candidate.success:.1%})", against)


def improvement(settings: Promotion, found: Difference) -> Check:
    """Better by more than `min_improvement`, or not worse where `allow_equal` is on."""
    better = found.low > settings.min_improvement
    equal = settings.allow_equal and found.low >= -settings.max_regression
    verdict = "beats" if better else "is not worse than" if equal else "does not beat"
    wanted = f"above {settings.min_improvement:+.1%}"
    if settings.allow_equal:
        wanted += f" or, as equal, no lower than {-settings.max_regression:+.1%}"
    return Check(name="improvement", ok=better or equal, text=found.text(verdict, wanted))


def no_regression(settings: Promotion, suite: str, found: Difference) -> Check:
    """Not worse on a suite: the interval reaches no lower than minus `max_regression`."""
    ok = found.low >= -settings.max_regression
    verdict = "is not worse than" if ok else "may be worse than"
    text = found.text(verdict, f"no lower than {-settings.max_regression:+.1%}")
    return Check(name=f"no_regression/{suite}", ok=ok, text=text)


def measured(name: str, metric: str, limit: float, ref: str, manifest: CheckpointManifest) -> Check:
    """A mean over the updates that made the checkpoint, as its manifest says, is at most `limit`."""
    found = manifest.metrics.get(metric)
    if found is None:
        text = f"the manifest of {ref} has no `{metric}`, so nobody can say that it is at most {limit:g}"
        return Check(name=name, ok=False, text=text)
    return Check(name=name, ok=found <= limit, text=f"mean {metric} of {ref} is {found:.4g}, wanted at most {limit:g}")


def audited(store: ObjectStore, run: str) -> Check:
    """`headrace audit verify` of the run is ok."""
    try:
        found = audit.verify(store, run)
    except AuditViolation as error:
        return Check(name="audit", ok=False, text=str(error))
    rows = f", {found.total('generated')} trajectories accounted for" if found.ok else ""
    return Check(name="audit", ok=found.ok, text=found.sentence() + rows)


def approved(agreed: bool, name: str, why: str = "") -> Check:
    """A person agreed."""
    text = f"{name} {'agreed' if agreed else 'did not agree'}" + (f": {why}" if why else "")
    return Check(name="approval", ok=agreed, text=text)
