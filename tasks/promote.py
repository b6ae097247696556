"""Promotion: the gate decides, the decision is written, then one pointer is swapped.

A driver that dies between the decision and the swap is finished by the next one, unless somebody else was promoted
meanwhile: then the gate decides anew, against the new champion.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from schemas.errors import RunStopped
from schemas.promotion import Channel, GateDecision, Promotion
from storage.expired import check_weights
from tasks import decisions, gate, gate_checks, registry
from tasks.gate import Case
from tasks.initial import read_champion


@dataclass(frozen=True)
class Answer:
    """What a person said."""

    agreed: bool
    name: str
    why: str = ""


Ask = Callable[[Case, GateDecision], Answer | None]
"""Asks a person about a candidate that passed all else; None when stopped, RunStopped where nobody answers."""


def promote(case: Case, ask: Ask, *, anew: bool = False) -> GateDecision | None:
    """Decide on a candidate and, if it won, make it the champion; None when stopped before a decision.

    `anew`: decide again though it was decided. RequestError where the candidate is gone, RunStopped where somebody else
    was promoted while the gate decided.
    """
    gate.check_case(case)
    store, request = case.session.store, case.session.request
    champion = read_champion(store, request.config)
    if champion is not None and champion.weights.sha256 == case.weights.sha256:
        return _standing(case, champion)
    made = None if anew else standing_decision(case)
    if made is None:
        decision = _decide(case, ask)
        if decision is None:
            return None
        made = decisions.write(store, case.base, decision), decision
    if not decisions.is_settled(_channel(case), *made):
        _swap(case, *made)
    return made[1]


def standing_decision(case: Case) -> tuple[str, GateDecision] | None:
    """The decision that was made, where it still holds: settled, or against the champion of today."""
    made = decisions.newest(case.session.store, case.base)
    if made is None or decisions.is_settled(_channel(case), *made):
        return made
    champion = _channel(case).champion
    return made if champion is None or champion.weights.sha256 == made[1].baseline_sha256 else None


def _channel(case: Case) -> Channel:
    config = case.session.request.config
    return registry.read(case.session.store, config.registry_name, config.promotion.channel)[0]


def _decide(case: Case, ask: Ask) -> GateDecision | None:
    found = gate.examine(case)
    if found is None or not found.promoted or not case.session.request.config.promotion.approval:
        return found
    answer = ask(case, found)
    if answer is None:
        return None
    checks = (*found.checks, gate_checks.approved(answer.agreed, answer.name, answer.why))
    changes = {"promoted": answer.agreed, "checks": checks, "reason": gate.reason(checks), "time": time.time()}
    return found.model_copy(update=changes | {"approved_by": answer.name if answer.agreed else ""})


def _swap(case: Case, key: str, decision: GateDecision) -> None:
    """Append to the channel, unless the champion is no longer the one that was beaten."""
    store, config = case.session.store, case.session.request.config
    ledger_head = case.manifest.ledger_head

    def make(channel: Channel) -> Promotion:
        champion = channel.champion
        if champion is not None and champion.weights.sha256 != decision.baseline_sha256:
            raise RunStopped(
                f"{champion.ref} became champion while the gate decided on {case.ref}: run again to compare with it"
            )
        check_weights(store, case.weights)  # the decision is written: what is there by now will stay
        return Promotion(
            ref=case.ref,
            by=registry.person(),
            approved_by=decision.approved_by,
            weights=case.weights,
            ledger_head=ledger_head,
            report=decision.reports[0],
            decision=key,
            previous=champion.ref if champion else "",
            reason=decision.reason,
            time=time.time(),
        )

    registry.append(store, config.registry_name, config.promotion.channel, make)


def _standing(case: Case, champion: Promotion) -> GateDecision:
    """The decision that made the candidate the champion; a new one saying so where it was not this gate's."""
    stored = decisions.newest(case.session.store, case.base)
    if stored is not None and stored[1].promoted and decisions.is_settled(_channel(case), *stored):
        return stored[1]
    decision = GateDecision(
        candidate=case.ref,
        weights_sha256=case.weights.sha256,
        baseline=champion.ref,
        baseline_sha256=case.weights.sha256,
        promoted=True,
        improvement=0.0,
        low=0.0,
        high=0.0,
        confidence=case.session.request.config.promotion.confidence,
        reason=f"{champion.ref} is the champion",
        reports=(champion.report,) if champion.report else (),
        time=time.time(),
    )
    decisions.write(case.session.store, case.base, decision)
    return decision
