"""The order of a run's stages. Each is done if the store does not have it; a stop drains what runs."""

from typing import Any

from prefect.futures import PrefectFuture, as_completed

from flows import artifacts, flow_runs
from schemas.errors import RunStopped
from tasks import registry, reinforce, session, stages, wanted
from tasks.session import Session


def drive(run: str) -> str:
    """Drive an open run to its end inside a flow. Raises the first cause that stopped it."""
    here = session.current(run)
    here.note_flow_run(flow_runs.own_id())
    with artifacts.shown(here):
        return _drive(here)


def _drive(here: Session) -> str:
    run = here.request.run
    try:
        _warm_up(here)
        _reinforce(here)
        _note_candidate(here)
        _evaluate(here)
        _raise_cause(here)
        stages.promote_stage.submit(run).result()
        _raise_cause(here)
    finally:
        here.stop.set()
    return "finished"


def _warm_up(here: Session) -> None:
    for stage in here.survey().warm_ups:
        stages.warm_up_stage.submit(here.request.run, stage.name).result()
        _raise_cause(here)
        here.note_stages()


def _reinforce(here: Session) -> None:
    run = here.request.run
    rl = here.survey().rl
    if rl.state == "finished":
        here.note_stages()
        here.tell("rl", {"event": "skipped", "name": "rl", "key": rl.key})
        return
    base = reinforce.open_stage(here)
    learner = stages.learn.submit(run, base)
    if here.request.config.rollout.infrastructure == "deployment":
        workers = [stages.roll_out_elsewhere.submit(run, base)]
    else:
        workers = [stages.roll_out.submit(run, base, i) for i in range(here.request.config.rollout.workers)]
    evaluation = here.request.config.evaluation
    beside = evaluation.every > 0 and evaluation.infrastructure == "process"
    _wait([learner, *workers, *([stages.evaluate_alongside.submit(run)] if beside else [])])
    _raise_cause(here)


def _note_candidate(here: Session) -> None:
    case = wanted.candidate(here)
    if case is not None:
        name = here.request.config.registry_name
        registry.note_candidate(here.store, name, case.ref, case.weights, case.manifest.ledger_head)


def _evaluate(here: Session) -> None:
    run = here.request.run
    futures = [
        stages.evaluate_stage.submit(run, key, f"{e.name}, {e.setting}, T={e.temperature:g}")
        for key, e in wanted.evaluations(here).items()
    ]
    _wait(futures)


def _wait(futures: list[PrefectFuture[Any]]) -> None:
    """Wait for all. What a bug raises in one of them is raised at once, whoever comes first: it ends the others."""
    for future in as_completed(futures):
        future.result()


def _raise_cause(here: Session) -> None:
    if here.cause is not None:
        raise here.cause
    if here.stop.is_set():
        raise RunStopped(f"run {here.request.run} was stopped: run again to go on")
