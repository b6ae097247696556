"""Asking a person inside a flow: its run pauses in Prefect with a form, and the store has the same question.

The first answer counts, from wherever it comes. Prefect's own `pause_flow_run` would look at neither the store nor our
stop signal, so the pause is entered and left here; the form and its answer are Prefect's.
"""

import time
from datetime import timedelta
from typing import cast
from uuid import UUID, uuid4

import httpx
from prefect import runtime
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import FlowRun
from prefect.input import RunInput, keyset_from_paused_state
from prefect.states import Paused
from pydantic import Field

from schemas.errors import RunStopped
from schemas.promotion import Approval, GateDecision
from tasks import questions
from tasks.gate import Case
from tasks.promote import Answer

POLL_SECONDS = 2.0
"""How often answers are looked for."""
_MARGIN = timedelta(minutes=5)
"""Prefect's own limit lies that much later, so that the gate is who gives up."""


class GateApproval(RunInput):
    """The form that Prefect shows."""

    approve: bool = Field(description="Promote this checkpoint?")
    name: str = Field(description="Who decides, for the history", min_length=1)
    reason: str = Field(default="", description="Why; the decision keeps it", max_length=questions.LONGEST_REASON)


def ask(case: Case, found: GateDecision) -> Answer | None:
    """Pause the flow run until somebody answers. None when the run was stopped; RunStopped when time is up.

    An answer that a driver got and died with counts: nobody is asked the same again.
    """
    session, store = case.session, case.session.store
    seconds = session.request.config.promotion.approval_seconds
    if questions.put(store, case.base, found, seconds):
        session.tell("gate", {"event": "log", "message": _invitation(case, found, seconds)})
        try:
            closed = _answered(case, found, seconds)
        except httpx.HTTPError as error:
            raise RunStopped(
                f"Prefect's server failed while {case.ref} waited for a person ({error or type(error).__name__}): run "
                f"again; an answer that was given counts"
            ) from error
    else:
        closed = questions.close(store, case.base)
    if closed.approved is not None:
        return Answer(closed.approved, closed.by, closed.why)
    if session.stop.is_set():
        return None
    raise RunStopped(
        f"nobody approved {case.ref} within {seconds:,.0f} s: run again to ask again, or answer with "
        f"`headrace promote {case.ref} --approve NAME` (or --decline NAME)"
    )


def _answered(case: Case, found: GateDecision, seconds: float) -> Approval:
    """The question as it was closed, after a pause of the flow run."""
    with get_client(sync_client=True) as client:
        pause = _Pause(client, UUID(str(runtime.flow_run.get_id())), found, seconds)
        _wait(case, pause, seconds)
        closed = questions.close(case.session.store, case.base)
        pause.leave(closed)
    return closed


def _wait(case: Case, pause: "_Pause", seconds: float) -> None:
    """Until the question in the store is answered, time is up or the run was stopped. The form's answer goes there."""
    store, stop, end = case.session.store, case.session.stop, time.monotonic() + seconds
    try:
        while not stop.is_set() and time.monotonic() < end:
            answer = pause.answer()
            if answer is not None:
                questions.answer(store, case.base, agreed=answer.agreed, name=answer.name, why=answer.why)
            found = questions.read(store, case.base)
            if found is not None and found.approved is not None:
                return
            stop.wait(min(POLL_SECONDS, max(0.0, end - time.monotonic())))
    except BaseException:
        questions.close(store, case.base)
        raise


def _invitation(case: Case, found: GateDecision, seconds: float) -> str:
    return (
        f"{found.reason}; waiting at most {seconds:,.0f} s for a person: resume the paused flow run "
        f"{runtime.flow_run.get_name()} in Prefect, or `headrace promote {case.ref} --approve NAME` (or --decline NAME)"
    )


class _Pause:
    """A flow run of this process, paused with a form. A server that does not answer for a while is asked again."""

    def __init__(self, client: SyncPrefectClient, flow_run: UUID, found: GateDecision, seconds: float) -> None:
        self._client, self._flow_run = client, flow_run
        limit = int(seconds + _MARGIN.total_seconds())
        state = Paused(timeout_seconds=limit, reschedule=False, pause_key=f"gate-{uuid4()}")
        self._keys = keyset_from_paused_state(state)
        state.state_details.run_input_keyset = {str(name): key for name, key in self._keys.items()}
        client.set_flow_run_state(flow_run, state)
        form = GateApproval.with_initial_data(description=f"{found.reason}\n\n" + _listed(found), approve=False)
        form.save(self._keys, flow_run)

    def answer(self) -> Answer | None:
        """What the form was sent with, once the run was resumed. RunStopped where the flow run has ended."""
        try:
            run = self._client.read_flow_run(self._flow_run)
            if run.state is not None and run.state.is_running():
                form = cast(GateApproval, GateApproval.load(self._keys, self._flow_run))
                return Answer(form.approve, form.name, form.reason)
        except httpx.HTTPError:
            return None
        if run.state is not None and (run.state.is_final() or run.state.is_cancelling()):
            raise RunStopped(_ended(run))
        return None

    def leave(self, answered: Approval) -> None:
        """Let the flow run go on after an answer that did not come from Prefect."""
        run = self._client.read_flow_run(self._flow_run)
        if answered.approved is not None and run.state is not None and run.state.is_paused():
            given = {"approve": answered.approved, "name": answered.by, "reason": answered.why}
            self._client.resume_flow_run(self._flow_run, given)


def _ended(run: FlowRun) -> str:
    state = run.state.name if run.state else "gone"
    return f"the flow run {run.name} was set to {state} while it waited for a person: run again to ask again"


def _listed(found: GateDecision) -> str:
    return "\n".join(f"- {c.name}: {c.text}" for c in found.checks)
