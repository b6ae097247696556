"""The Prefect tasks: names and states for people around plain functions. Prefect keeps no results; manifests do.

Their bodies refer only to modules, and their parameters are plain text: a served flow is pickled by value.
"""

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks import alongside, evaluate, pause, promote, reinforce, session, wanted, warm_up


@task(name="warm-up", task_run_name="warm-up {name}", persist_result=False, cache_policy=NO_CACHE)
def warm_up_stage(run: str, name: str) -> str:
    """Supervise one warm-up stage."""
    return warm_up.warm_up(session.current(run), name)


@task(name="roll-out", task_run_name="roll-out {index}", persist_result=False, cache_policy=NO_CACHE)
def roll_out(run: str, base: str, index: int) -> str:
    """Supervise one rollout worker."""
    return reinforce.roll_out(session.current(run), base, index)


@task(name="roll-out elsewhere", persist_result=False, cache_policy=NO_CACHE)
def roll_out_elsewhere(run: str, base: str) -> str:
    """Watch the run's workers on other machines."""
    return reinforce.roll_out_elsewhere(session.current(run), base)


@task(name="learn", persist_result=False, cache_policy=NO_CACHE)
def learn(run: str, base: str) -> str:
    """Supervise the learner."""
    return reinforce.learn(session.current(run), base)


@task(name="evaluate alongside", persist_result=False, cache_policy=NO_CACHE)
def evaluate_alongside(run: str) -> int:
    """Evaluate the run's checkpoints beside training; returns how many evaluations were made."""
    return alongside.evaluate_alongside(session.current(run))


@task(name="evaluate", task_run_name="evaluate {name}", persist_result=False, cache_policy=NO_CACHE)
def evaluate_stage(run: str, key: str, name: str) -> float | None:
    """Supervise one evaluation; returns the success."""
    here = session.current(run)
    with here.evaluating:
        report = None if here.stop.is_set() else evaluate.evaluate(here, wanted.evaluations(here)[key])
    return report.success if report else None


@task(name="promote", persist_result=False, cache_policy=NO_CACHE)
def promote_stage(run: str) -> bool:
    """Let the gate decide on the run's candidate, asking a person where it must; whether it was promoted."""
    here = session.current(run)
    case = wanted.candidate(here)
    decision = promote.promote(case, pause.ask) if case else None
    return decision is not None and decision.promoted
