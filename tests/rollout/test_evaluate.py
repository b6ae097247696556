"""Evaluations on a memory store: the report names what was played, and is written once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engines import POLICIES
from support.rollouts import TASKS, TOKENIZER, config, load, put_tasks, sealed
from support.tiny import TINY

from rollout import vllm_engine
from rollout.evaluate import Evaluation
from rollout.probe import EngineUnproved
from rollout.scripted import ScriptedEngine
from rollout.statistics import wilson
from schemas import keys
from schemas.errors import RunStopped
from schemas.evaluation import EvaluationReport, EvaluationSpec
from schemas.manifest import WeightsRef
from storage.memory import MemoryStore

OUTPUT = "runs/test/evaluations/k1"
SCRIPTS = """
from support.rollouts import END, solve

def half(stream, seed, version):
    return solve(stream, seed, version) if seed % 2 else [*b"?", END]

def first_only(stream, seed, version):
    return solve(stream, seed, version) if b"10*" in bytes(t for t in stream if t < 256) else [*b"?", END]
"""


def evaluation(
    folder: Path,
    script: str,
    store: MemoryStore | None = None,
    kinds: dict[str, str] | None = None,
    pass_at: tuple[int, ...] = (1,),
    engine: str = "scripted",
    **options: Any,
) -> tuple[MemoryStore, Any]:
    """`kinds`: the category of each task, `hard` where it is not named; none: tasks have no categories."""
    store = store or MemoryStore()
    tasks = [replace(t, extra={"kind": kinds.get(t.id, "hard")}) for t in TASKS] if kinds else TASKS
    settings = {"pass_at": pass_at, "samples": 3, "category": "kind" if kinds else ""}
    playing = {"script": f"scripts:{script}", "engine": engine}
    (folder / "scripts.py").write_text(SCRIPTS)
    key, digest = put_tasks(store, tasks)
    store.put("weights/weights", b"w")
    spec = EvaluationSpec(
        run="test",
        name="candidate",
        checkpoint="test@4",
        weights=WeightsRef(prefix="weights", sha256="a" * 64),
        config=config(rollout=playing, evaluation=settings).model_dump(mode="json"),
        folder=str(folder),
        tasks=key,
        tasks_sha256=digest,
        temperature=1.0,
        samples=3,
        seed=5,
        confidence=0.9,
        setting="evaluation.tasks",
        output=OUTPUT,
    )
    events: list[dict[str, Any]] = []
    made = Evaluation(
        store,
        spec,
        report=lambda event, **f: events.append({"event": event} | f),
        **({"stop": bool, "load": load} | options),
    )
    made.events = events  # type: ignore[attr-defined]
    return store, made


async def test_every_task_is_played_and_the_report_names_the_digests(tmp_path: Path) -> None:
    store, made = evaluation(tmp_path, "first_only")
    report = await made.run()
    assert report.weights_sha256 == "a" * 64
    assert (report.n, report.success, report.reward) == (15, 0.2, 0.2)
    assert report.scores == {"t0": 1.0} | {t.id: 0.0 for t in TASKS[1:]}
    assert (report.low, report.high) == wilson(3, 15, 0.9)
    assert report.statuses == {"succeeded": 15}
    rows = sealed(store, OUTPUT)
    assert sorted((r.group, r.sample, r.task_id) for r in rows) == [
        (g, s, t.id) for g, t in enumerate(TASKS) for s in range(3)
    ]
    assert all(k.startswith(report.trajectories) for k in store.list(f"{OUTPUT}/trajectories/"))
    assert EvaluationReport.from_bytes(store.get(keys.evaluation_report(OUTPUT)).data, "it") == report
    assert made.events[-1] == {"event": "evaluation", "name": "candidate", "done": 15, "n": 15, "success": 0.2}


async def test_the_same_seed_gives_the_same_figures_and_a_report_is_never_replaced(tmp_path: Path) -> None:
    store, made = evaluation(tmp_path, "half")
    first = await made.run()
    _, elsewhere = evaluation(tmp_path, "half")
    assert (await elsewhere.run()).scores == first.scores
    assert 0 < first.success < 1
    _, again = evaluation(tmp_path, "first_only", store)
    assert await again.run() == first
    assert len(sealed(store, OUTPUT)) == 15


async def test_the_report_tells_pass_at_k_and_categories(tmp_path: Path) -> None:
    store, made = evaluation(tmp_path, "first_only", kinds={"t0": "easy"}, pass_at=(1, 3))
    report = await made.run()
    assert report.pass_at == pytest.approx({1: 0.2, 3: 0.2})
    easy, hard = report.categories["easy"], report.categories["hard"]
    assert (easy.n, easy.success, hard.n, hard.success, hard.low) == (3, 1.0, 12, 0.0, 0.0)
    assert (easy.low, easy.high) == wilson(3, 3, 0.9)
    lengths = [len(r.tokens) for r in sealed(store, OUTPUT)]
    assert report.tokens == pytest.approx(sum(lengths) / 15)


async def test_a_stop_leaves_no_report(tmp_path: Path) -> None:
    store, made = evaluation(tmp_path, "half", stop=lambda: True)
    with pytest.raises(RunStopped, match="was stopped"):
        await made.run()
    assert store.head(keys.evaluation_report(OUTPUT)) is None


class Restless(ScriptedEngine):
    """Stands in for servers that compute something else each time."""

    closed = 0

    def __init__(self, *_: Any, version: int, **__: Any) -> None:
        super().__init__(lambda *_: [1], version=version)
        self.scores = 0

    async def start(self) -> None:
        pass

    async def score(self, token_ids: tuple[int, ...]) -> dict[str, tuple[float, ...]]:
        self.scores += 1
        return {"the restless engine": (-float(self.scores),) * (len(token_ids) - 1)}

    async def close(self) -> None:
        Restless.closed += 1
        await super().close()


async def test_an_engine_that_is_not_proved_plays_nothing_and_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "VllmEngine", Restless)
    monkeypatch.setattr(Restless, "closed", 0)
    store, made = evaluation(tmp_path, "half", engine="vllm", load=lambda *_: (TINY, POLICIES[0], TOKENIZER))
    with pytest.raises(EngineUnproved, match="the restless engine does not hold policy 0"):
        await made.run()
    assert Restless.closed == 1
    assert not sealed(store, OUTPUT)
