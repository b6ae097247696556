"""Deployments of our flows: named FLOW/NAME, found by their modules, on a work pool or served."""

from typing import Any

from prefect import Flow
from prefect.deployments.runner import EntrypointType, RunnerDeployment

from flows import prefect_environment
from schemas.errors import RequestError


def own_name(flow: Flow[Any, Any], name: str, setting: str) -> str:
    """NAME of FLOW/NAME. RequestError where the setting names a deployment of another flow."""
    flow_name, _, own = name.partition("/")
    if flow_name != flow.name:
        raise RequestError(
            f"{setting} = {name} is of another flow: it names a deployment of {flow.name}, such as {flow.name}/headrace"
        )
    return own


def of(flow: Flow[Any, Any], name: str, work_pool: str | None, **more: Any) -> RunnerDeployment:
    """The flow's deployment of this name, which is not written yet. `work_pool` None: it is served."""
    made: Any = flow.to_deployment(
        name=name,
        entrypoint_type=EntrypointType.MODULE_PATH,
        work_pool_name=work_pool,
        job_variables=prefect_environment.JOB_VARIABLES if work_pool else None,
        **more,
    )
    return made
