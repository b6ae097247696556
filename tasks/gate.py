"""The gate: every condition of `promotion` in order, against the champion or, for the first one, where RL started.

All conditions are looked at, so that a refusal lists everything that is wrong. A person is asked last, and only about a
candidate that passed the rest.
"""

import time
from dataclasses import dataclass

from schemas import keys
from schemas.errors import RequestError
from schemas.manifest import CheckpointManifest, WeightsRef
from schemas.promotion import Check, GateDecision
from storage.audit_runs import find_checkpoint
from tasks import gate_checks, registry
from tasks.evaluate import evaluate
from tasks.figures import Evaluation, evaluation
from tasks.gate_checks import Match
from tasks.initial import read_champion
from tasks.session import Session
from tasks.survey import gate_key


@dataclass(frozen=True)
class Case:
    """A candidate before the gate."""

    session: Session
    ref: str
    weights: WeightsRef
    start: WeightsRef
    """The weights that its RL stage started from."""

    @property
    def base(self) -> str:
        """The folder of what the gate finds."""
        return keys.gate(self.session.request.run, gate_key(self.session.request, self.weights))

    @property
    def manifest(self) -> CheckpointManifest:
        """The candidate's checkpoint; RequestError if it is gone."""
        run, _, step = self.ref.rpartition("@")
        return find_checkpoint(self.session.store, run, int(step), self.weights.sha256)[1]


def check_case(case: Case) -> None:
    """RequestError unless the candidate is a checkpoint of the session's run and is still there."""
    run = case.session.request.run
    if case.ref.rpartition("@")[0] != run:
        raise RequestError(f"{case.ref} is not a checkpoint of run {run}: its own run's gate decides on it")
    registry.check_present(case.session.store, case.ref, case.manifest.policy)


def matches(case: Case) -> tuple[Match, ...]:
    """What the gate compares: on its own tasks, then on every suite that must not suffer."""
    request = case.session.request
    settings, suites = request.config.promotion, {s.name: s for s in request.config.evaluation.suites}
    champion = read_champion(request.store, request.config)
    baseline = champion.weights if champion else case.start
    called = champion.ref if champion else (case.start.origin or case.start.prefix)
    sides = (("candidate", case.ref, case.weights), ("champion" if champion else "warm-up", called, baseline))

    def match(setting: str, temperature: float, samples: int, suite: str = "") -> Match:
        mine, other = (evaluation(request, n, setting, r, w, temperature, samples) for n, r, w in sides)
        return Match(mine, other, suite)

    own = match("promotion.tasks", settings.temperature, settings.samples)
    kept = [suites[name] for name in settings.no_regression]
    return own, *(match(s.setting, s.temperature, s.samples, s.name) for s in kept)


def evaluations(case: Case) -> list[Evaluation]:
    """Everything that has to be played before the gate can look."""
    return [e for match in matches(case) for e in match.evaluations]


def examine(case: Case) -> GateDecision | None:
    """Look at everything but the approval: `promoted` says whether all of it is fulfilled. None when stopped first."""
    session, request = case.session, case.session.request
    found, differences = matches(case), []
    for match in found:
        reports = [evaluate(session, e) for e in match.evaluations]
        if reports[0] is None or reports[1] is None:
            return None
        differences.append(gate_checks.compare(request.config.promotion, request.seed, match, reports[0], reports[1]))
    checks = (*_compared(case, found, differences), *_on_the_run(case))
    own, first = found[0], differences[0]
    return GateDecision(
        candidate=case.ref,
        weights_sha256=case.weights.sha256,
        baseline=own.baseline.checkpoint,
        baseline_sha256=own.baseline.weights.sha256,
        promoted=all(c.ok for c in checks),
        improvement=first.mean,
        low=first.low,
        high=first.high,
        confidence=request.config.promotion.confidence,
        reason=reason(checks),
        checks=checks,
        reports=tuple(_report_key(request.run, e) for m in found for e in m.evaluations),
        time=time.time(),
    )


def _report_key(run: str, played: Evaluation) -> str:
    return keys.evaluation_report(keys.evaluation(run, played.key))


def reason(checks: tuple[Check, ...]) -> str:
    """The failed checks in words; where there are none, the improvement."""
    failed = [c.text for c in checks if not c.ok]
    return "; ".join(failed) if failed else checks[0].text


def _compared(case: Case, found: tuple[Match, ...], differences: list[gate_checks.Difference]) -> list[Check]:
    settings = case.session.request.config.promotion
    suites = zip(found[1:], differences[1:], strict=True)
    return [
        gate_checks.improvement(settings, differences[0]),
        *(gate_checks.no_regression(settings, match.suite, difference) for match, difference in suites),
    ]


def _on_the_run(case: Case) -> list[Check]:
    settings, manifest, checks = case.session.request.config.promotion, case.manifest, []
    if settings.max_staleness is not None:
        checks.append(gate_checks.measured("staleness", "staleness", settings.max_staleness, case.ref, manifest))
    if settings.max_mismatch_kl is not None:
        checks.append(gate_checks.measured("mismatch", "mismatch_kl", settings.max_mismatch_kl, case.ref, manifest))
    if settings.audit:
        checks.append(gate_checks.audited(case.session.store, case.session.request.run))
    return checks
