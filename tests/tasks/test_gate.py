"""The gate: every condition by itself with its sentence, decisions that are made once, promotions that race."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.gated import crown, ended, grade

from schemas import keys
from schemas.errors import RequestError, RunStopped
from schemas.promotion import GateDecision
from storage.open import open_store
from tasks import decisions, gate, promote, registry
from tasks.gate import Case
from tasks.promote import Answer
from tasks.survey import survey


def nobody(case: Case, found: GateDecision) -> Answer | None:
    raise AssertionError("nobody was to be asked")


def says(agreed: bool) -> Callable[[Case, GateDecision], Answer | None]:
    return lambda case, found: Answer(agreed, "Ada")


def decide(case: Case, ask: Callable[[Case, GateDecision], Answer | None] = nobody, *, anew: bool = False):
    decision = promote.promote(case, ask, anew=anew)
    assert decision is not None
    return decision


def history(root: str, channel: str = "production") -> list[str]:
    return [e.ref for e in registry.read(open_store(root), "small", channel)[0].history]


def failed(decision: GateDecision) -> dict[str, str]:
    return {c.name: c.text for c in decision.checks if not c.ok}


def test_a_better_candidate_becomes_the_champion(project: Path, root: str) -> None:
    case = ended(project, root)
    grade(case, (1.0, 0.5))
    decision = decide(case)
    assert decision.promoted and [c.name for c in decision.checks] == ["improvement", "audit"]
    assert "small@3 (100.0%) beats the warm-up stages/scratch-" in decision.reason
    entry = registry.read(case.session.store, "small", "production")[0].history[-1]
    assert entry.kind == "gate" and "@" in entry.by and entry.report == decision.reports[0]
    assert GateDecision.from_bytes(case.session.store.get(entry.decision).data, "d") == decision
    found = case.session.survey()
    assert found.settled and found.decision == decision
    assert decide(case) == decision and history(root) == ["small@3"]


@pytest.mark.parametrize(("candidate", "baseline"), [(0.2, 0.9), (0.5, 0.5)])
def test_a_worse_and_an_equal_one_are_refused_once(project: Path, root: str, candidate: float, baseline: float) -> None:
    case = ended(project, root)
    grade(case, (candidate, baseline))
    decision = decide(case)
    assert not decision.promoted and list(failed(decision)) == ["improvement"]
    assert "does not beat" in decision.reason and "wanted above +0.0%" in decision.reason
    assert history(root) == [] and case.session.survey().settled
    grade(case, (1.0, 0.0))
    assert decide(case) == decision  # it was decided; only somebody who asks for it is answered anew
    assert decide(case, anew=True).promoted and history(root) == ["small@3"]


def test_an_equal_one_is_taken_where_the_gate_allows_it(project: Path, root: str) -> None:
    crown(root, "old@1")
    case = ended(project, root, "promotion.allow_equal=true")
    grade(case, (0.5, 0.5))
    decision = decide(case)
    assert decision.promoted and "is not worse than the champion old@1" in decision.reason
    assert history(root) == ["old@1", "small@3"]
    worse = ended(project, root, "promotion.allow_equal=true", run="worse")
    grade(worse, (0.4, 0.5))
    assert not decide(worse).promoted and history(root) == ["old@1", "small@3"]


def suite(project: Path) -> str:
    rows = [{"id": f"safe-{i}", "prompt": f"safe {i}?", "answer": str(i)} for i in range(20)]
    (project / "safe.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return 'evaluation.suites=[{name="safe", tasks="safe.jsonl", samples=2}]'


def test_a_suite_must_not_suffer(project: Path, root: str) -> None:
    case = ended(project, root, suite(project), 'promotion.no_regression=["safe"]')
    assert [m.suite for m in gate.matches(case)] == ["", "safe"]
    assert {e.samples for e in gate.matches(case)[1].evaluations} == {2}
    grade(case, (1.0, 0.5), (0.5, 1.0))
    decision = decide(case)
    assert [c.name for c in decision.checks] == ["improvement", "no_regression/safe", "audit"]
    assert list(failed(decision)) == ["no_regression/safe"]
    assert "may be worse than" in decision.reason and "20 problems of suite safe" in decision.reason
    assert "wanted no lower than -2.0%" in decision.reason and len(decision.reports) == 4
    grade(case, (1.0, 0.5), (1.0, 1.0))
    assert decide(case, anew=True).promoted


@pytest.mark.parametrize(
    ("setting", "limit", "name", "metric"),
    [("max_staleness", 0.5, "staleness", "staleness"), ("max_mismatch_kl", 0.005, "mismatch", "mismatch_kl")],
)
def test_what_was_measured_while_training_is_bounded(
    project: Path, root: str, setting: str, limit: float, name: str, metric: str
) -> None:
    case = ended(project, root, f"promotion.{setting}={limit}")
    grade(case, (1.0, 0.5))
    found = failed(decide(case))
    assert list(found) == [name] and found[name].endswith(f"wanted at most {limit:g}")
    assert f"mean {metric} of small@3 is" in found[name]
    silent = ended(project, root, f"promotion.{setting}=5", run="silent", metrics={})
    grade(silent, (1.0, 0.5))
    assert failed(decide(silent)) == {
        name: f"the manifest of silent@3 has no `{metric}`, so nobody can say that it is at most 5"
    }
    fine = ended(project, root, f"promotion.{setting}=5", run="fine")
    grade(fine, (1.0, 0.5))
    assert decide(fine).promoted


def test_the_audit_of_the_run_must_be_ok(project: Path, root: str) -> None:
    case = ended(project, root)
    grade(case, (1.0, 0.5))
    base = keys.rl("small", case.session.survey().rl.key)
    case.session.store.delete(keys.ledger(base, 1))
    found = failed(decide(case))
    assert list(found) == ["audit"] and f"{keys.ledger(base, 1)} is missing" in found["audit"]
    unaudited = ended(project, root, "promotion.audit=false")
    grade(unaudited, (1.0, 0.5))
    case.session.store.delete(keys.ledger(base, 1))
    assert decide(unaudited).promoted


def test_every_failure_is_listed_and_nobody_is_asked(project: Path, root: str) -> None:
    case = ended(project, root, "promotion.max_staleness=0.1", "promotion.approval=true")
    grade(case, (0.1, 0.5))
    decision = decide(case)
    assert list(failed(decision)) == ["improvement", "staleness"] and "; mean staleness" in decision.reason


def test_a_person_agrees_or_does_not(project: Path, root: str) -> None:
    case = ended(project, root, "promotion.approval=true")
    grade(case, (1.0, 0.5))
    refused = decide(case, says(False))
    assert failed(refused) == {"approval": "Ada did not agree"} and history(root) == []
    agreed = decide(case, says(True), anew=True)
    assert agreed.promoted and agreed.checks[-1].text == "Ada agreed"
    assert registry.read(case.session.store, "small", "production")[0].history[-1].approved_by == "Ada"


def test_nobody_answering_decides_nothing(project: Path, root: str) -> None:
    case = ended(project, root, "promotion.approval=true")
    grade(case, (1.0, 0.5))

    def late(case: Case, found: GateDecision) -> Answer | None:
        raise RunStopped("nobody approved")

    with pytest.raises(RunStopped, match="nobody approved"):
        promote.promote(case, late)
    assert promote.promote(case, lambda c, f: None) is None
    assert case.session.survey().decision is None and not case.session.survey().settled
    assert decide(case, says(True)).promoted


def test_a_driver_that_dies_before_the_pointer_moves_is_finished(
    project: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = ended(project, root, "promotion.approval=true")
    grade(case, (1.0, 0.5))
    with monkeypatch.context() as patch:
        patch.setattr(registry, "append", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            promote.promote(case, says(True))
    assert history(root) == [] and not case.session.survey().settled
    assert promote.standing_decision(case) is not None
    assert decide(case).promoted and history(root) == ["small@3"]  # nobody is asked again
    assert registry.read(case.session.store, "small", "production")[0].history[-1].approved_by == "Ada"


def test_a_champion_that_came_meanwhile_is_compared_with(
    project: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = ended(project, root)
    grade(case, (1.0, 0.5))
    examine = gate.examine

    def slowly(case: Case) -> GateDecision | None:
        found = examine(case)
        crown(root, "rival@7")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(gate, "examine", slowly)
        with pytest.raises(RunStopped, match="rival@7 became champion while the gate decided on small@3"):
            promote.promote(case, nobody)
    assert history(root) == ["rival@7"] and not case.session.survey().settled
    assert promote.standing_decision(case) is None
    grade(case, (1.0, 1.0))
    assert "does not beat the champion rival@7" in decide(case).reason and history(root) == ["rival@7"]


def test_rollback_restores_and_the_run_stays_finished(project: Path, root: str) -> None:
    crown(root, "old@1")
    case = ended(project, root)
    grade(case, (1.0, 0.5))
    decide(case)
    registry.rollback(case.session.store, "small", "production", None, "it swears")
    assert history(root) == ["old@1", "small@3", "old@1"] and case.session.survey().settled
    assert decide(case).promoted and history(root)[-1] == "old@1"  # decided and carried out before
    assert decide(case, anew=True).promoted and history(root)[-1] == "small@3"


def test_the_gate_refuses_what_is_not_its_own(project: Path, root: str) -> None:
    case = ended(project, root)
    other = ended(project, root, run="other")
    grade(case, (1.0, 0.5))
    grade(other, (1.0, 0.5))
    match = gate.matches(case)[0]
    foreign = gate.matches(other)[0]
    store, mine = case.session.store, f"{keys.evaluation('small', match.candidate.key)}/report.json"
    theirs = store.get(f"{keys.evaluation('other', foreign.candidate.key)}/report.json").data
    own = store.get(mine).data
    store.put(mine, theirs)
    with pytest.raises(RunStopped, match=r"is of weights \w+, but small@3 has"):
        promote.promote(case, nobody)
    digest = json.loads(theirs) | {"weights_sha256": case.weights.sha256}
    store.put(mine, json.dumps(digest).encode())
    with pytest.raises(RunStopped, match="is another run's: it speaks of the episodes in runs/other/"):
        promote.promote(case, nobody)
    store.put(mine, own)
    with pytest.raises(RequestError, match="other@3 is not a checkpoint of run small"):
        promote.promote(Case(case.session, other.ref, other.weights, other.start), nobody)
    assert history(root) == [] and case.session.survey().decision is None


def test_a_checkpoint_that_is_gone_is_refused(project: Path, root: str) -> None:
    case = ended(project, root)
    grade(case, (1.0, 0.5))
    store = case.session.store
    for key in store.list(f"{case.weights.prefix}/"):
        store.delete(key)
    with pytest.raises(RequestError, match="the weights of small@3 are no longer in"):
        promote.promote(case, nobody)
    store.delete(keys.checkpoint_manifest(keys.rl("small", case.session.survey().rl.key), 3))
    with pytest.raises(RequestError, match="there is no checkpoint `small@3`"):
        promote.promote(case, nobody)


def test_a_champion_needs_no_second_decision(project: Path, root: str) -> None:
    case = ended(project, root)
    grade(case, (1.0, 0.5))
    decide(case)
    changed = ended(project, root, "promotion.min_improvement=0.1")
    decision = decide(changed)
    assert decision.promoted and decision.reason == "small@3 is the champion" and history(root) == ["small@3"]
    assert survey(changed.session.request, changed.session.record).settled


def test_a_decision_that_other_settings_overtook_is_settled(
    project: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = ended(project, root)
    grade(case, (1.0, 0.5))
    with monkeypatch.context() as patch:
        patch.setattr(registry, "append", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            promote.promote(case, nobody)
    decide(ended(project, root, "promotion.min_improvement=0.1"))
    assert decide(case).reason == "small@3 is the champion" and history(root) == ["small@3"]
    assert survey(case.session.request, case.session.record).settled


def test_every_decision_is_kept(project: Path, root: str) -> None:
    case = ended(project, root)
    grade(case, (0.1, 0.5))
    decide(case)
    grade(case, (1.0, 0.5))
    decide(case, anew=True)
    kept = case.session.store.list(f"{case.base}/decisions/")
    assert [k[-13:] for k in kept] == ["00000001.json", "00000002.json"]
    newest = decisions.newest(case.session.store, case.base)
    assert newest is not None and newest[0] == kept[-1] and newest[1].promoted


def test_other_suite_tasks_ask_for_another_decision(project: Path, root: str) -> None:
    guarded = (suite(project), 'promotion.no_regression=["safe"]')
    case = ended(project, root, *guarded)
    (project / "safe.jsonl").write_text((project / "safe.jsonl").read_text().replace("safe 0?", "safe zero?"))
    changed = ended(project, root, *guarded)
    assert changed.base != case.base and changed.weights == case.weights


def test_a_suite_that_shares_a_task_or_does_not_exist_is_refused(project: Path, root: str) -> None:
    overrides = (suite(project), 'promotion.no_regression=["safe"]')
    (project / "safe.jsonl").write_text((project / "gate.jsonl").read_text())
    with pytest.raises(RequestError, match=r"promotion.tasks .* and evaluation.suites.safe .* share the task id"):
        ended(project, root, *overrides)
    with pytest.raises(RequestError, match=r"names the suite `kind`, which is not in evaluation.suites"):
        ended(project, root, overrides[0], 'promotion.no_regression=["kind"]')
