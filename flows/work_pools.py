"""Work pools: that one exists, and what may be set for its jobs. Job variables are `KEY=VALUE` or `env.NAME=VALUE`."""

import json
from collections.abc import Sequence
from typing import Any

from flows import prefect_environment
from schemas.errors import RequestError


def job_variables(given: Sequence[str]) -> dict[str, Any]:
    """What the deployments of a pool set for their jobs: ours, and what the user gave."""
    found: dict[str, Any] = {"env": dict(prefect_environment.JOB_VARIABLES["env"])}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or key in ("", "env", "env."):
            raise RequestError(f"--job-variable {text} is not of the form KEY=VALUE or env.NAME=VALUE")
        if key.startswith("env."):
            found["env"][key.removeprefix("env.")] = value
        else:
            found[key] = value
    return found


def fitted(work_pool: str, variables: dict[str, Any]) -> dict[str, Any]:
    """The variables as the pool types them, such as the number of `finished_job_ttl=60`.

    RequestError where there is no such pool, or where its jobs have no such variable: Prefect would ignore it.
    """
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    try:
        with get_client(sync_client=True) as client:
            pool = client.read_work_pool(work_pool)
    except ObjectNotFound as error:
        raise RequestError(
            f"Prefect has no work pool `{work_pool}`: create it with `prefect work-pool create {work_pool} "
            f"--type process` (or another type), or give --work-pool"
        ) from error
    known = pool.base_job_template.get("variables", {}).get("properties", {})
    unknown = sorted(set(variables) - set(known))
    if known and unknown:  # a pool that its first worker has yet to describe knows none
        raise RequestError(
            f"--job-variable {unknown[0]}: jobs of the work pool `{work_pool}` ({pool.type}) have no such variable "
            f"(they have {', '.join(known)})"
        )
    return {key: _typed(value, known.get(key, {})) for key, value in variables.items()}


def _typed(value: Any, schema: dict[str, Any]) -> Any:
    """A text that must be something else, read as JSON. What is not JSON is left for Prefect to refuse."""
    kinds = {found.get("type", "string") for found in schema.get("anyOf", [schema])}
    if not isinstance(value, str) or "string" in kinds:
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
