"""Schedules: a deployment of the flow whose every firing is a run of its own, starting from the champion.

Without a cron line a deployment fires only by hand or by the API. Overlap is refused by the lease in the store. The
deployments have no concurrency limit of Prefect's: its place stays taken when a worker ends under a firing, and would
then refuse every later one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from flows import prefect_environment, work_pools
from flows.local_server import check_reachable
from schemas.errors import RequestError
from tasks.environment import check_environment
from tasks.lessons_proof import check_lessons
from tasks.request import Request, keep_data, load
from tasks.start import check_start


@dataclass(frozen=True)
class When:
    """When to fire. `cron` empty: only when asked. `timezone` empty: UTC."""

    cron: str = ""
    timezone: str = ""
    evaluate: str = ""
    """When evaluators look for whatever is due of the root's runs. Empty: only when a run's event fires them."""


def serve(config: str, overrides: Sequence[str], root: str | None, when: When) -> None:
    """Serve the deployment, and those of its workers and evaluators if it wants them, until this process is stopped."""
    request = _checked(config, overrides, root, when)
    prefect_environment.prepare(quiet=False)
    deployments = _deployments(request, when)
    _need_server("serve")
    keep_data(request)
    import prefect

    rollout = request.config.rollout
    more = rollout.workers - 1 if rollout.infrastructure == "deployment" else 0
    # Workers that leave may still be there when others come.
    prefect.serve(*deployments, limit=2 * (len(deployments) + more))


def deploy(
    config: str, overrides: Sequence[str], root: str | None, when: When, work_pool: str, variables: Sequence[str] = ()
) -> str:
    """Create the deployment on a work pool, and those of its workers and evaluators if it wants them; returns its name.

    `variables` are job variables of the pool, as `KEY=VALUE`; all the deployments get them.
    """
    request = _checked(config, overrides, root, when)
    prefect_environment.prepare(quiet=False)
    deployments = _deployments(request, when, work_pool)
    given = work_pools.job_variables(variables)
    _need_server("deploy")
    found = work_pools.fitted(work_pool, given)
    keep_data(request)
    for deployment in deployments:
        deployment.job_variables = found
        _apply(deployment)
    return f"post-training/{request.run}"


def parameters(request: Request) -> dict[str, Any]:
    """The flow's parameters."""
    return {
        "config": request.config.model_dump(mode="json"),
        "folder": str(request.folder),
        "root": request.store.url,
        "schedule": request.run,
    }


def _checked(config: str, overrides: Sequence[str], root: str | None, when: When) -> Request:
    if when.timezone and not (when.cron or when.evaluate):
        raise RequestError("--timezone says in which zone --cron is read: give --cron too, or leave both out")
    request = load(config, overrides, root=root)
    check_start(request)
    check_environment(request)
    check_lessons(request)
    return request


def _deployments(request: Request, when: When, work_pool: str | None = None) -> list[Any]:
    """The run's own, and those of its workers and evaluators if it wants them. `work_pool` None: they are served."""
    own = _deployment(request, when, work_pool)
    return [own, *_workers(request, work_pool), *_evaluators(request, when, work_pool)]


def _deployment(request: Request, when: When, work_pool: str | None = None) -> Any:
    from flows.deployments import of
    from flows.post_training import post_training

    return of(post_training, request.run, work_pool, schedules=_schedules(when), parameters=parameters(request))


def _apply(deployment: Any) -> None:
    from prefect.deployments.runner import DeploymentApplyError

    try:
        deployment.apply()
    except DeploymentApplyError as error:
        raise RequestError(f"Prefect does not take the deployment {deployment.name}: {error}") from error


def _workers(request: Request, work_pool: str | None) -> list[Any]:
    """The deployment that the run asks for its workers, if it does."""
    from flows import rollout_worker

    rollout = request.config.rollout
    wanted = rollout.infrastructure == "deployment"
    return [rollout_worker.deployment(work_pool, rollout.deployment)] if wanted else []


def _evaluators(request: Request, when: When, work_pool: str | None) -> list[Any]:
    """The deployment that the run's events fire, if it wants one. It also looks for what is due when `--evaluate`
    says."""
    from flows import evaluating

    settings = request.config.evaluation
    schedules = _schedules(When(when.evaluate, when.timezone), "--evaluate")
    if when.evaluate and settings.infrastructure != "deployment":
        raise RequestError(
            "--evaluate says when evaluators of a deployment look for what is due: set evaluation.infrastructure = "
            "deployment, or leave it out"
        )
    if settings.infrastructure != "deployment":
        return []
    return [evaluating.deployment(work_pool, request.store.url, settings.deployment, schedules)]


def _schedules(when: When, option: str = "--cron") -> list[Any]:
    """Prefect's schedules; RequestError where the cron line or the time zone is none."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule

    _check_timezone(when.timezone)
    if not when.cron:
        return []
    try:
        schedule = CronSchedule(cron=when.cron, timezone=when.timezone or "UTC")
    except ValueError as error:
        raise RequestError(
            f"{option} `{when.cron}` is not a cron line (such as '0 3 * * *' for every night at three)"
        ) from error
    return [DeploymentScheduleCreate(schedule=schedule)]


def _check_timezone(name: str) -> None:
    try:
        ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise RequestError(f"--timezone `{name}` is no time zone (such as Europe/Berlin or UTC)") from error


def _need_server(command: str) -> None:
    from prefect.settings import get_current_settings

    url = get_current_settings().api.url
    if url:
        check_reachable(url)
    else:
        raise RequestError(
            f"{command} needs a Prefect server: `prefect server start`, then set PREFECT_API_URL to its address"
        )
