"""A run that has ended, with fake arrays and a real ledger, and reports for its gate: all that a decision needs."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from schemas import keys
from schemas.evaluation import EvaluationReport
from schemas.manifest import WeightsRef
from schemas.promotion import Channel, Promotion
from storage.open import open_store
from storage.rows import read_tasks
from support.projects import FAKES
from tasks import gate, record, reinforce, scratch, wanted
from tasks.figures import Evaluation
from tasks.gate import Case
from tasks.request import load
from tasks.session import Session, opened

STEP = 3


def fakes() -> ModuleType:
    """The stand-ins, as functions."""
    sys.path.insert(0, str(FAKES))
    try:
        return importlib.import_module("fake_processes")
    finally:
        sys.path.remove(str(FAKES))


def ended(project: Path, root: str, *overrides: str, run: str = "small", metrics: dict | None = None) -> Case:
    """The candidate of a run whose RL made three steps that train nothing."""
    request = load(str(project / "small.toml"), ["warm_up=[]", *overrides], root=root, run=run)
    events: list = []
    with opened(request, record.prepare(request), lambda source, event: events.append((source, event))):
        pass
    manifest = record.read_run(request.store, run)
    assert manifest is not None
    session = Session(request, manifest, lambda source, event: events.append((source, event)))
    scratch.make(session.store, request.config, request.warm_up_seed)
    base = reinforce.open_stage(session)
    made = fakes()
    policy, head = made.leave_checkpoint(session.store, base, STEP, made.METRICS if metrics is None else metrics)
    made.leave_manifest(session.store, base, STEP, policy, head)
    case = wanted.candidate(session)
    assert case is not None
    return case


def report(session: Session, played: Evaluation, success: float) -> EvaluationReport:
    """A report in which the first `success` of the tasks were solved."""
    output = keys.evaluation(session.request.run, played.key)
    names = sorted(tasks_of(session, played.setting))
    scores = {name: float(i < success * len(names)) for i, name in enumerate(names)}
    return EvaluationReport(
        name=played.name, checkpoint=played.checkpoint, weights_sha256=played.weights.sha256,
        tasks=session.request.data[played.setting].key, tasks_sha256=session.request.data[played.setting].sha256,
        temperature=played.temperature, seed=played.seed, n=len(names), success=success, low=0, high=1,
        confidence=0.95, reward=success, setting=played.setting, samples=played.samples, scores=scores, statuses={},
        trajectories=f"{output}/trajectories/w", code="0", seconds=1.0,
    )  # fmt: skip


def tasks_of(session: Session, setting: str) -> list[str]:
    file = session.request.data[setting]
    return [t.id for t in read_tasks(file.data, file.suffix, file.where)]


def grade(case: Case, *scores: tuple[float, float]) -> None:
    """Put the reports of (candidate, baseline) on the gate's tasks and then on each suite."""
    for match, pair in zip(gate.matches(case), scores, strict=True):
        for played, success in zip(match.evaluations, pair, strict=True):
            key = f"{keys.evaluation(case.session.request.run, played.key)}/report.json"
            case.session.store.put(key, report(case.session, played, success).to_bytes())


def crown(root: str, ref: str, name: str = "small", channel: str = "production") -> WeightsRef:
    """Make something the champion, without a gate."""
    store, key = open_store(root), keys.channel(name, channel)
    weights = WeightsRef(prefix=f"weights/{ref}", sha256=f"digest-of-{ref}", origin=ref)
    store.put(f"{weights.prefix}/config.json", b"{}")
    entry = Promotion(ref=ref, weights=weights, ledger_head="", report="", previous="", reason="", time=0)
    found = store.list(f"registry/{name}/{channel}")
    history = Channel.from_bytes(store.get(key).data, key).history if found else ()
    store.put(key, Channel(name=name, channel=channel, history=(*history, entry)).to_bytes())
    return weights
