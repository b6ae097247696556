"""An evaluation: every task played so many times with fixed weights, and a report that names their digests.

The episodes are kept as shards; the report is written last, once. Failed episodes count as not solved.
`python -P -m rollout.evaluate --root URL --spec KEY` plays the evaluation described by the document at KEY.
"""

import argparse
import asyncio
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from models.user_modules import check_same
from rollout import garbage, hooks
from rollout.engine import SCORED
from rollout.episode import Job
from rollout.orchestrator import RolloutOrchestrator
from rollout.policy import LoadWeights, Policy, announced
from rollout.probe import Prover
from rollout.sealer import Sealer
from rollout.setup import Identity, set_up, shard_writer, stored_tasks
from rollout.statistics import pass_at, wilson
from schemas import config_text, keys
from schemas.data import Task
from schemas.errors import RunStopped
from schemas.evaluation import Category, EvaluationReport, EvaluationSpec
from schemas.trajectory import Trajectory
from schemas.version import code_version
from storage import process
from storage.documents import read_document
from storage.objects import ObjectExists, ObjectStore
from storage.open import open_store
from storage.pulse import beat, busy

PROGRESS_SECONDS = 1.0


class Evaluation:
    """One evaluation; `run` returns its report, at once if it exists already."""

    def __init__(
        self,
        store: ObjectStore,
        spec: EvaluationSpec,
        *,
        load: LoadWeights,
        report: Callable[..., Any] = process.emit,
        stop: Callable[[], bool] = process.stop_requested,
    ) -> None:
        self._store, self._spec, self._load, self._report, self._stop = store, spec, load, report, stop
        self._config = config_text.check(spec.config, f"the evaluation of {spec.checkpoint}")
        self._tasks = stored_tasks(store, spec.tasks, spec.tasks_sha256)
        self._worker = f"e-{uuid.uuid4().hex[:10]}"
        self._rows: dict[tuple[int, int], Trajectory] = {}

    async def run(self) -> EvaluationReport:
        """Play everything. RunStopped if a stop is asked for first."""
        key, began = keys.evaluation_report(self._spec.output), time.monotonic()
        made = read_document(self._store, EvaluationReport, key)
        if made is not None:
            return made
        telling = asyncio.ensure_future(self._tell_regularly())
        try:
            await self._play()
        finally:
            telling.cancel()
        report = self._summary(time.monotonic() - began)
        try:
            self._store.create(key, report.to_bytes())
        except ObjectExists:
            return EvaluationReport.from_bytes(self._store.get(key).data, key)
        return report

    async def _play(self) -> None:
        spec, config = self._spec, self._config
        load = announced(self._load, config.supervision.work_seconds)
        policy = Policy(0, *await asyncio.to_thread(load, self._store, spec.weights))
        identity = Identity(spec.run, spec.seed, self._worker)
        made = await set_up(config, spec.folder, policy, identity, spec.temperature)
        sealer = Sealer(shard_writer(self._store, spec.output, self._worker, made.metadata, config))
        orchestrator = RolloutOrchestrator(
            made.collector.collect,
            lambda row: self._finished(row, sealer),
            max_concurrency=config.rollout.max_concurrency,
            attempts=config.rollout.attempts,
        )

        def turn() -> bool:
            """A turn of the loop: a sign of life unless the engine is stuck, and whether to stop."""
            if made.engine.gets_on():
                beat()
            return self._stop()

        try:
            if config.rollout.servers is not None:  # a server may hold on to what it held before
                count = min(SCORED, config.rollout.max_length - 1)
                await Prover(made.engine, config.rollout.probe_tolerance).alone(policy.params, policy.version, count)
            del policy  # the engine has weights of its own
            await orchestrator.run(self._jobs(), turn)
            if self._stop():
                raise RunStopped(f"the evaluation of {spec.checkpoint} was stopped: run it again")
        finally:
            with busy("leaving", config.supervision.work_seconds):
                await orchestrator.cancel(lambda _: True)
                await sealer.flush()
                await hooks.settle(1.0)
                await made.close()

    def _jobs(self) -> Iterator[Job]:
        for sample in range(self._spec.samples):
            for number, task in enumerate(self._tasks):
                yield Job(number, sample, 0, task)

    def _finished(self, row: Trajectory, sealer: Sealer) -> None:
        sealer.add(row)
        sealer.poll(idle=False)
        self._rows[row.group, row.sample] = row

    async def _tell_regularly(self) -> None:
        """Also while weights are loaded and compiled: a display, and no sign of progress."""
        while True:
            self._tell()
            await asyncio.sleep(PROGRESS_SECONDS)

    def _tell(self) -> None:
        total = len(self._tasks) * self._spec.samples
        rate = float(np.mean([r.solved for r in self._rows.values()] or [False]))
        self._report("evaluation", name=self._spec.name, done=len(self._rows), n=total, success=rate)

    def _category(self) -> str:
        """The field that tells this task set's categories apart; the gate's own tasks need not have it."""
        return self._config.evaluation.category if self._spec.setting.startswith("evaluation.") else ""

    def _summary(self, seconds: float) -> EvaluationReport:
        self._tell()
        spec, rows = self._spec, list(self._rows.values())
        wins = sum(r.solved for r in rows)
        low, high = wilson(wins, len(rows), spec.confidence)
        return EvaluationReport(
            name=spec.name,
            checkpoint=spec.checkpoint,
            weights_sha256=spec.weights.sha256,
            tasks=spec.tasks,
            tasks_sha256=spec.tasks_sha256,
            temperature=spec.temperature,
            seed=spec.seed,
            n=len(rows),
            success=wins / len(rows),
            low=low,
            high=high,
            confidence=spec.confidence,
            setting=spec.setting,
            samples=spec.samples,
            reward=float(np.mean([0.0 if r.failed else r.reward for r in rows])),
            pass_at=passes(rows, [k for k in self._config.evaluation.pass_at if k <= spec.samples]),
            categories=categories(self._tasks, rows, self._category(), spec.confidence),
            tokens=float(np.mean([len(r.tokens) for r in rows])),
            scores=task_scores(self._tasks, rows),
            statuses=dict(Counter(r.status for r in rows)),
            trajectories=f"{keys.trajectories(spec.output)}/{self._worker}",
            code=code_version(),
            seconds=seconds,
        )


def passes(rows: Sequence[Trajectory], ks: Sequence[int]) -> dict[int, float]:
    """pass@k for each k, averaged over tasks."""
    found = _outcomes(rows, lambda row: row.task_id)
    return {k: float(np.mean([pass_at(len(v), sum(v), k) for v in found.values()])) for k in ks}


def categories(tasks: Sequence[Task], rows: Sequence[Trajectory], field: str, confidence: float) -> dict[str, Category]:
    """Success by the value of a field of the tasks; nothing for an empty field."""
    if not field:
        return {}
    value = {t.id: str(t.extra[field]) for t in tasks}
    found = _outcomes(rows, lambda row: value[row.task_id])
    return {name: _category(found[name], confidence) for name in sorted(found)}


def _category(won: Sequence[bool], confidence: float) -> Category:
    low, high = wilson(sum(won), len(won), confidence)
    return Category(n=len(won), success=sum(won) / len(won), low=low, high=high)


def task_scores(tasks: Sequence[Task], rows: Sequence[Trajectory]) -> dict[str, float]:
    """Task id → mean success of its samples, in the order of the task file."""
    found = _outcomes(rows, lambda row: row.task_id)
    return {t.id: float(np.mean(found[t.id])) for t in tasks}


def _outcomes(rows: Sequence[Trajectory], name: Callable[[Trajectory], str]) -> dict[str, list[bool]]:
    """Whether each row counts as a success, by a name."""
    found: dict[str, list[bool]] = {}
    for row in rows:
        found.setdefault(name(row), []).append(row.solved)
    return found


def main(args: argparse.Namespace) -> None:
    """The process."""
    os.nice(args.niceness)
    store = open_store(args.root)
    spec = EvaluationSpec.from_bytes(store.get(args.spec).data, args.spec)
    config = config_text.check(spec.config, f"the evaluation of {spec.checkpoint}")
    check_same(config, spec.folder, spec.environment_sha256, spec.run)
    limit = config.supervision.work_seconds
    with busy("imports", limit):
        from models.compiling import announce_compilations
        from models.stored import load_weights

    garbage.spare()
    announce_compilations(limit)
    asyncio.run(Evaluation(store, spec, load=load_weights).run())


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="rollout.evaluate")
    out.add_argument("--root", required=True)
    out.add_argument("--spec", required=True)
    out.add_argument("--niceness", type=int, default=0, help="how far to stand back behind other processes")
    return out


if __name__ == "__main__":
    process.run_process(main, parser())
