"""What Prefect has to say about flow runs, and what is said to it about dead ones. For display: no decision but one
hangs on it, whether a person has cancelled this flow run.
"""

from collections.abc import Iterable
from uuid import UUID

import httpx
from prefect import get_run_logger, runtime
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed


def own_id() -> str:
    """The id of the flow run that this is."""
    return str(runtime.flow_run.get_id())


def was_cancelled() -> bool:
    """Whether somebody has cancelled this flow run. A server that does not answer has cancelled nothing."""
    try:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(UUID(own_id())).state
    except httpx.HTTPError:
        return False
    return state is not None and (state.is_cancelling() or state.is_cancelled())


def mark_crashed(ids: Iterable[str], message: str) -> None:
    """Tell Prefect that these flow runs have died, where it believes that they go on."""
    try:
        with get_client(sync_client=True) as client:
            for flow_run in ids:
                try:
                    state = client.read_flow_run(UUID(flow_run)).state
                except ObjectNotFound:
                    continue
                if state is not None and not state.is_final():
                    client.set_flow_run_state(UUID(flow_run), Crashed(message=message), force=True)
    except httpx.HTTPError as error:
        get_run_logger().warning("Prefect still believes that dead flow runs go on: %s", error)
