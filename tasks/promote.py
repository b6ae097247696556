"""The gate: does the candidate beat the champion on the gate's own problems? Then one pointer is swapped.

The first champion has to beat the weights that RL started from. The decision is written before the pointer moves, so
that a driver that dies in between finds what it had decided.
"""

import time

from schemas import keys, seeds
from schemas.errors import RunStopped
from schemas.evaluation import EvaluationReport
from schemas.manifest import WeightsRef
from schemas.promotion import Channel, GateDecision, Promotion
from storage.objects import find
from tasks import registry
from tasks.evaluate import evaluate
from tasks.initial import read_champion
from tasks.session import Session
from tasks.survey import Evaluation, decision_key, evaluation, gate_key


def gate_evaluations(
    session: Session, ref: str, candidate: WeightsRef, start: WeightsRef
) -> tuple[Evaluation, Evaluation]:
    """What the gate compares: the candidate and its baseline (the champion, else where RL started)."""
    request, settings = session.request, session.request.config.promotion
    champion = read_champion(session.store, request.config)
    baseline = champion.weights if champion else start
    called = champion.ref if champion else (start.origin or start.prefix)
    t, n = settings.temperature, settings.samples
    mine = evaluation(request, "candidate", "promotion.tasks", ref, candidate, t, n)
    return mine, evaluation(request, "champion" if champion else "warm-up", "promotion.tasks", called, baseline, t, n)


def promote(session: Session, ref: str, candidate: WeightsRef, start: WeightsRef) -> GateDecision | None:
    """Decide on a candidate and, if it won, make it the champion; None when stopped before a decision."""
    champion = read_champion(session.store, session.request.config)
    if champion is not None and champion.weights.sha256 == candidate.sha256:
        return _standing(session, candidate)
    mine, other = gate_evaluations(session, ref, candidate, start)
    reports = evaluate(session, mine), evaluate(session, other)
    if reports[0] is None or reports[1] is None:
        return None
    decision = decide(session, mine, other, reports[0], reports[1])
    session.store.put(decision_key(session.request.run, gate_key(session.request, candidate)), decision.to_bytes())
    if decision.promoted:
        _swap(session, decision, candidate, mine)
    return decision


def decide(
    session: Session, mine: Evaluation, other: Evaluation, candidate: EvaluationReport, baseline: EvaluationReport
) -> GateDecision:
    """Compare two reports task by task with a paired bootstrap."""
    settings, run = session.request.config.promotion, session.request.run
    if candidate.scores.keys() != baseline.scores.keys():
        raise RunStopped("the gate's two reports do not speak of the same tasks: evaluate again")
    mean, low, high = _bootstrap(session, candidate, baseline)
    promoted = low > settings.min_improvement
    verdict = "beats" if promoted else "does not beat"
    reason = (
        f"{mine.checkpoint} ({candidate.success:.1%}) {verdict} the {other.name} {other.checkpoint} "
        f"({baseline.success:.1%}) on {len(candidate.scores)} gate problems: {mean:+.1%}, "
        f"{settings.confidence:.0%} interval {low:+.1%} to {high:+.1%}, wanted above {settings.min_improvement:+.1%}"
    )
    return GateDecision(
        candidate=mine.checkpoint,
        weights_sha256=mine.weights.sha256,
        baseline=other.checkpoint,
        baseline_sha256=other.weights.sha256,
        promoted=promoted,
        improvement=mean,
        low=low,
        high=high,
        confidence=settings.confidence,
        reason=reason,
        reports=tuple(f"{keys.evaluation(run, e.key)}/report.json" for e in (mine, other)),
        time=time.time(),
    )


def _bootstrap(session: Session, candidate: EvaluationReport, baseline: EvaluationReport) -> tuple[float, float, float]:
    from rollout.statistics import paired_bootstrap

    settings, names = session.request.config.promotion, sorted(candidate.scores)
    return paired_bootstrap(
        [candidate.scores[n] for n in names],
        [baseline.scores[n] for n in names],
        resamples=settings.resamples,
        confidence=settings.confidence,
        seed=seeds.derive("gate", session.request.seed),
    )


def _swap(session: Session, decision: GateDecision, candidate: WeightsRef, mine: Evaluation) -> None:
    """Append to the channel, unless the champion is no longer the one that was beaten."""
    config, ledger_head = session.request.config, _ledger_head(session, mine)

    def make(channel: Channel) -> Promotion:
        standing = channel.champion
        if standing is not None and standing.weights.sha256 != decision.baseline_sha256:
            raise RunStopped(f"{standing.ref} became champion while the gate decided: run again to compare with it")
        return Promotion(
            ref=decision.candidate,
            by=registry.person(),
            weights=candidate,
            ledger_head=ledger_head,
            report=decision.reports[0],
            previous=standing.ref if standing else "",
            reason=decision.reason,
            time=time.time(),
        )

    registry.append(session.store, config.registry_name, config.promotion.channel, make)


def _ledger_head(session: Session, mine: Evaluation) -> str:
    from storage.audit_runs import find_checkpoint

    run, _, step = mine.checkpoint.rpartition("@")
    return find_checkpoint(session.store, run, int(step), mine.weights.sha256)[1].ledger_head


def _standing(session: Session, candidate: WeightsRef) -> GateDecision | None:
    """The decision that made the champion what it is; a new one saying so where its run is not this one."""
    key = decision_key(session.request.run, gate_key(session.request, candidate))
    stored = find(session.store, key)
    if stored is not None:
        return GateDecision.from_bytes(stored.data, key)
    champion = read_champion(session.store, session.request.config)
    ref = champion.ref if champion else ""
    decision = GateDecision(
        candidate=ref,
        weights_sha256=candidate.sha256,
        baseline=ref,
        baseline_sha256=candidate.sha256,
        promoted=True,
        improvement=0.0,
        low=0.0,
        high=0.0,
        confidence=session.request.config.promotion.confidence,
        reason=f"{ref} is the champion",
        reports=(champion.report,) if champion else (),
        time=time.time(),
    )
    session.store.put(key, decision.to_bytes())
    return decision
