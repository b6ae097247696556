"""Prefect's side of workers elsewhere: flow runs of a deployment that are asked for, looked at and cancelled.

Calls are short and are not repeated here: whoever asks again and again decides what an unreachable server means.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from schemas.config import Run
from schemas.errors import HeadraceError, RequestError

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

SECONDS = 5.0
"""Deadline of one call."""
FINAL = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})
_T = TypeVar("_T")


class PoolUnreachable(HeadraceError):
    """Prefect's server did not answer, or not as expected."""


@dataclass(frozen=True)
class Asked:
    """A flow run that was asked for, as Prefect has it."""

    id: str
    state: str
    """Prefect's type of state: `SCHEDULED`, `PENDING`, `RUNNING`, `COMPLETED`, …"""
    message: str = ""

    @property
    def final(self) -> bool:
        return self.state in FINAL


class WorkerPool(Protocol):
    """Where workers are asked for. Every call may raise PoolUnreachable."""

    def ask(self, name: str, key: str, parameters: dict[str, Any]) -> Asked:
        """Ask for a flow run; the same `key` gives the same flow run, whatever became of it."""

    def look(self, ids: Iterable[str]) -> dict[str, Asked]:
        """The flow runs as they are now; those that were deleted are missing."""

    def standing(self) -> list[Asked]:
        """The flow runs that were asked for here, by this process or one before it, and have not ended."""

    def cancel(self, id: str) -> None:
        """Ask a flow run to end, and do not wait for it."""

    def hint(self) -> str:
        """What a person should look at when nobody comes."""


def check(config: Run) -> None:
    """RequestError where a run wants workers or evaluators elsewhere and Prefect has no server or no deployment."""
    if config.rollout.infrastructure == "deployment":
        PrefectPool(config.rollout.deployment).check("rollout")
    if config.evaluation.every and config.evaluation.infrastructure == "deployment":
        PrefectPool(config.evaluation.deployment).check("evaluation")


class PrefectPool:
    """A deployment of the Prefect server at PREFECT_API_URL. `name` is FLOW/NAME.

    `stage` marks the flow runs that are asked for here, whichever process asks: the root and folder of an RL stage.
    """

    def __init__(self, name: str, stage: str = "") -> None:
        self._name, self._stage = name, stage

    def check(self, section: str) -> None:
        """RequestError where there is no server or no such deployment. `section` of the configuration wants it."""
        from prefect.exceptions import ObjectNotFound
        from prefect.settings import get_current_settings

        if not get_current_settings().api.url:
            raise RequestError(
                f"{section}.infrastructure = deployment needs a Prefect server that other machines reach: start one "
                f"with `prefect server start` and set PREFECT_API_URL to its address"
            )
        try:
            self._call(lambda client: client.read_deployment_by_name(self._name))
        except ObjectNotFound as error:
            raise RequestError(
                f"Prefect has no deployment {self._name} ({section}.deployment): create it with `headrace deploy`, or "
                f"correct the name"
            ) from error
        except PoolUnreachable as error:
            raise RequestError(str(error)) from error

    def ask(self, name: str, key: str, parameters: dict[str, Any]) -> Asked:
        return _asked(self._call(lambda client: self._create(client, name, key, parameters)))

    def _create(self, client: "SyncPrefectClient", name: str, key: str, parameters: dict[str, Any]) -> Any:
        from prefect.exceptions import ObjectNotFound

        try:
            deployment = client.read_deployment_by_name(self._name)
        except ObjectNotFound as error:
            raise PoolUnreachable(f"Prefect has no deployment {self._name} any more") from error
        return client.create_flow_run_from_deployment(
            deployment.id,
            name=name,
            idempotency_key=f"{self._name} {self._stage} {key}",
            parameters=parameters,
            tags=[self._stage],
        )

    def look(self, ids: Iterable[str]) -> dict[str, Asked]:
        from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

        wanted = [UUID(i) for i in ids]
        chosen = FlowRunFilter(id=FlowRunFilterId(any_=wanted))
        found = self._call(lambda client: client.read_flow_runs(flow_run_filter=chosen)) if wanted else []
        return {a.id: a for a in map(_asked, found)}

    def standing(self) -> list[Asked]:
        from prefect.client.schemas import filters
        from prefect.client.schemas.objects import StateType

        living = [t for t in StateType if t.value not in FINAL]
        chosen = filters.FlowRunFilter(
            tags=filters.FlowRunFilterTags(all_=[self._stage]),
            state=filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=living)),
        )
        return [_asked(run) for run in self._call(lambda client: client.read_flow_runs(flow_run_filter=chosen))]

    def cancel(self, id: str) -> None:
        from prefect.client.schemas.objects import StateType
        from prefect.exceptions import ObjectNotFound
        from prefect.states import State

        try:
            self._call(lambda client: client.set_flow_run_state(id, State(type=StateType.CANCELLING)))
        except ObjectNotFound:
            return

    def hint(self) -> str:
        """Names the work pool and what Prefect knows of its workers."""
        deployment = self._call(lambda client: client.read_deployment_by_name(self._name))
        pool = deployment.work_pool_name
        if pool is None:
            return f"is {self._name} being served?"
        return f"is a Prefect worker started for the pool `{pool}` (`prefect worker start --pool {pool}`)?"

    def _call(self, what: "Callable[[SyncPrefectClient], _T]") -> _T:
        import httpx
        from prefect.client.orchestration import get_client
        from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

        try:
            with (
                temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
                get_client(httpx_settings={"timeout": SECONDS}, sync_client=True) as client,
            ):
                return what(client)
        except httpx.HTTPStatusError as error:
            raise PoolUnreachable(f"Prefect's server answers {error.response.status_code}") from error
        except (httpx.HTTPError, RuntimeError) as error:  # the latter where the client finds no API
            raise PoolUnreachable(f"Prefect's server does not answer ({type(error).__name__}: {error})") from error


def _asked(run: Any) -> Asked:
    state = run.state
    return Asked(str(run.id), state.type.value if state else "SCHEDULED", (state.message or "") if state else "")
