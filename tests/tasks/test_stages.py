"""Stages without a flow: from scratch, skipping, specs, reports."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from schemas import keys
from schemas.errors import RunStopped
from schemas.evaluation import EvaluationReport
from schemas.manifest import RunManifest, WarmUpSpec, Window
from schemas.promotion import Channel, Promotion
from storage.objects import ObjectStore
from tasks import figures, record, reinforce, scratch, survey, warm_up
from tasks.children import Event
from tasks.evaluate import check_report
from tasks.request import from_record, load
from tasks.session import Session, opened


def start(project: Path, root: str, *overrides: str) -> tuple[Session, list[tuple[str, Event]]]:
    request = load(str(project / "small.toml"), overrides, root=root)
    events: list[tuple[str, Event]] = []
    with opened(request, record.prepare(request), lambda source, event: events.append((source, event))):
        pass
    manifest = record.read_run(request.store, request.run)
    assert manifest is not None
    return Session(request, manifest, lambda source, event: events.append((source, event))), events


def test_a_warm_up_is_done_once(project: Path, root: str, fakes: None) -> None:
    session, events = start(project, root)
    key = warm_up.warm_up(session, "habit")
    assert warm_up.warm_up(session, "habit") == key
    assert [e["event"] for _, e in events] == ["stage", "warm_up", "skipped"]
    spec = WarmUpSpec.from_bytes(session.store.get(keys.spec(keys.stage("habit", key))).data, "spec")
    assert spec.data == session.request.data["warm_up.habit"].key and spec.initial is None
    found = session.survey()
    assert found.rl.state == "ready" and found.rl.parent is not None


def test_a_second_warm_up_waits_for_the_first(project: Path, root: str, fakes: None) -> None:
    second = '{name="two", data="demos.jsonl", steps=1, optimizer={learning_rate=1e-3}}'
    first = second.replace("two", "one")
    session, _ = start(project, root, f"warm_up=[{first}, {second}]")
    assert [s.state for s in session.survey().stages] == ["ready", "waiting", "waiting"]
    warm_up.warm_up(session, "one")
    stages = session.survey().stages
    assert [s.state for s in stages] == ["finished", "ready", "waiting"] and stages[1].parent == stages[0].weights


def test_a_run_without_a_warm_up_starts_from_untrained_weights(project: Path, root: str) -> None:
    session, _ = start(project, root, "warm_up=[]")
    assert [s.name for s in session.survey().stages] == ["scratch", "rl"]
    scratch.make(session.store, session.request.config, 0)
    first = session.survey().stages[0]
    scratch.make(session.store, session.request.config, 0)
    assert first.state == "finished" and session.survey().stages[0] == first


def test_a_run_can_be_read_back_from_the_store_alone(project: Path, root: str) -> None:
    session, _ = start(project, root)
    for file in project.glob("*.jsonl"):
        file.unlink()
    again = from_record(session.store, session.record)
    assert {k: f.sha256 for k, f in again.data.items()} == {k: f.sha256 for k, f in session.request.data.items()}


def test_the_champion_of_the_first_start_is_kept(project: Path, root: str) -> None:
    request = load(str(project / "small.toml"), ["model.path=champion"], root=root)
    crown(request.store, "old@1", "aa")
    record.save(request.store, record.prepare(request))
    crown(request.store, "new@1", "bb")
    kept = record.prepare(request)
    assert [p.ref for p in kept.parents] == ["old@1"] and kept.initial is not None and kept.initial.sha256 == "aa"
    assert survey.survey(request, kept).warm_ups == ()


def test_a_report_of_other_weights_is_refused(project: Path, root: str) -> None:
    session, _ = start(project, root)
    wanted = evaluation(session, "small@3", "aa")
    report = graded(wanted, {"a": 1.0})
    check_report(report, wanted, report.tasks_sha256, "runs/small/evaluations/e")
    for change, says in (
        ({"weights_sha256": "bb"}, "is of weights bb"),
        ({"tasks_sha256": "cc"}, "other tasks"),
        ({"trajectories": "runs/other/evaluations/e"}, "another run's"),
        ({"temperature": 0.5}, "another temperature"),
    ):
        with pytest.raises(RunStopped, match=says):
            check_report(report.model_copy(update=change), wanted, report.tasks_sha256, "runs/small/evaluations/e")


def evaluation(session: Session, ref: str, sha256: str) -> figures.Evaluation:
    from schemas.manifest import WeightsRef

    weights = WeightsRef(prefix=ref, sha256=sha256, origin=ref)
    return figures.evaluation(session.request, "candidate", "promotion.tasks", ref, weights, 1.0, 1)


def graded(wanted: figures.Evaluation, scores: dict[str, float]) -> EvaluationReport:
    success = sum(scores.values()) / len(scores)
    return EvaluationReport(
        name=wanted.name, checkpoint=wanted.checkpoint, weights_sha256=wanted.weights.sha256, tasks="t",
        tasks_sha256="ss", temperature=1.0, seed=wanted.seed, n=len(scores), success=success, low=0, high=1,
        confidence=0.95, reward=success, scores=scores, statuses={},
        trajectories="runs/small/evaluations/e", code="0", seconds=1.0,
    )  # fmt: skip


def crown(store: ObjectStore, ref: str, sha256: str) -> None:
    from schemas.manifest import WeightsRef

    weights = WeightsRef(prefix="p", sha256=sha256, origin=ref)
    entry = Promotion(ref=ref, weights=weights, ledger_head="", report="", previous="", reason="", time=0)
    store.put(
        keys.channel("small", "production"), Channel(name="small", channel="production", history=(entry,)).to_bytes()
    )


def test_a_run_of_another_schema_version_is_refused(project: Path, root: str) -> None:
    from schemas.errors import RequestError

    session, _ = start(project, root)
    foreign: RunManifest = session.record.model_copy(update={"schema_version": 99})
    record.save(session.store, foreign)
    with pytest.raises(RequestError, match="schema version 99"):
        record.prepare(session.request)


def test_workers_of_a_continued_stage_wait_for_its_window(project: Path, root: str, fakes: None) -> None:
    session, events = start(project, root)
    warm_up.warm_up(session, "habit")
    base = reinforce.open_stage(session)
    closed = Window(version=3, step=3, limit=0, low=0, ended=(), closed=True, learner="x")
    session.store.put(keys.window(base), closed.to_bytes())
    with ThreadPoolExecutor() as pool:
        worker = pool.submit(reinforce.roll_out, session, base, 0)
        time.sleep(0.3)
        assert not any(source == "worker-0" for source, _ in events)
        session.store.put(keys.window(base), closed.model_copy(update={"closed": False}).to_bytes())
        while not any(source == "worker-0" for source, _ in events):
            time.sleep(0.05)
        assert reinforce.learn(session, base) == "finished"
        assert worker.result() == "finished" and session.cause is None
