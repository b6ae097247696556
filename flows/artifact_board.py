"""Artifacts of Prefect's, kept up to date by one thread: what changed is made and written every few seconds at most.

A display and no record: a write that fails is told once, the run goes on, and the next round tries again.
"""

import contextvars
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from schemas.errors import HeadraceError

SECONDS = 5.0
"""Least time between two rounds of writes."""
CALL_SECONDS = 5.0
"""Deadline of one call to Prefect."""


@dataclass(frozen=True)
class Artifact:
    """What is shown. `data`: per cent of a progress, rows of a table as JSON, or markdown."""

    kind: Literal["progress", "table", "markdown"]
    data: Any
    description: str = ""


Make = Callable[[], Artifact | None]
"""Makes an artifact of what is known by now; None while there is nothing to show."""
Write = Callable[[str, Artifact], None]


class Board:
    """Writes what was changed. `write` raises where Prefect does not take it; `complain` is told so once."""

    def __init__(self, write: Write, complain: Callable[[str], None], seconds: float = SECONDS) -> None:
        self._write, self._complain, self._seconds = write, complain, seconds
        self._changed: dict[str, Make] = {}
        self._lock, self._news, self._closed = threading.Lock(), threading.Event(), threading.Event()
        self._complained = False
        # Which server to talk to is a setting of this context; without it Prefect would start a server of its own.
        here = contextvars.copy_context()
        self._thread = threading.Thread(target=here.run, args=(self._run,), name="artifacts", daemon=True)
        self._thread.start()

    def change(self, name: str, make: Make) -> None:
        """Something that an artifact shows has changed; `make` is called when it is written."""
        with self._lock:
            self._changed[name] = make
        self._news.set()

    def close(self) -> None:
        """Write what is left and end. A server that does not answer is given up."""
        self._closed.set()
        self._news.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._news.wait()
            self._news.clear()
            self._round()
            self._closed.wait(self._seconds)
        self._round()

    def _round(self) -> None:
        """Write everything that has changed. After a failure the rest waits for the next round."""
        with self._lock:
            changed, self._changed = self._changed, {}
        for name, make in changed.items():
            try:
                found = make()
                if found is not None:
                    self._write(name, found)
            except (httpx.HTTPError, HeadraceError, RuntimeError, OSError, ValueError) as error:
                self._failed(error)
                with self._lock:
                    self._changed = changed | self._changed
                return

    def _failed(self, error: Exception) -> None:
        if not self._complained:
            self._complained = True
            reason = (str(error).splitlines() or [""])[0] or type(error).__name__
            self._complain(f"artifacts of this run can't be written ({reason}): the run goes on without them")


class PrefectWrites:
    """Writes the artifacts of one flow run: creates each once and updates it from then on."""

    def __init__(self, flow_run: str, prefix: str) -> None:
        self._flow_run, self._prefix = UUID(flow_run), prefix
        self._made: dict[str, UUID] = {}

    def __call__(self, name: str, artifact: Artifact) -> None:
        """Raises httpx.HTTPError or RuntimeError where Prefect does not take it."""
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(httpx_settings={"timeout": CALL_SECONDS}, sync_client=True) as client,
        ):
            if name in self._made:
                change = ArtifactUpdate(data=artifact.data, description=artifact.description)
                try:
                    return client.update_artifact(self._made[name], change)
                except ObjectNotFound:  # somebody has deleted it
                    pass
            made = ArtifactCreate(
                key=f"{self._prefix}-{name}",
                type=artifact.kind,
                data=artifact.data,
                description=artifact.description,
                flow_run_id=self._flow_run,
            )
            self._made[name] = client.create_artifact(made).id
