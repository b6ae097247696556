"""A run in Prefect's pages: progress, tables, a report and links, made from the events that everybody sees.

Keys are `RUN-progress`, `RUN-steps`, `RUN-evaluations`, `RUN-report` and `RUN-links`. Every flow run that drives the
run adds a version of each.
"""

import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta

from flows import artifact_texts, flow_runs
from flows.artifact_board import Artifact, Board, PrefectWrites
from tasks.children import Event
from tasks.session import Session, Sink


@contextmanager
def shown(session: Session) -> Generator[None]:
    """Keep the run's artifacts up to date for the time of a block, and say at its end how it ended."""
    writes = PrefectWrites(flow_runs.own_id(), prefix(session.request.run))
    before = session.sink
    board = Board(writes, lambda message: session.tell("artifacts", {"event": "log", "message": message}))
    view = _View(session, board, before)
    session.sink = view
    ended = "finished"
    try:
        view.look()
        yield
    except BaseException as error:
        ended = f"ended ({str(error) or type(error).__name__})"
        raise
    finally:
        view.end(ended)
        board.close()
        session.sink = before


def prefix(run: str) -> str:
    """What the keys of a run's artifacts begin with: Prefect allows small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-") or "run"


class _View:
    """A sink that notes what changed and passes every event on."""

    def __init__(self, session: Session, board: Board, sink: Sink) -> None:
        self._session, self._board, self._sink = session, board, sink
        self._steps: dict[int, Event] = {}
        self._last: Event | None = None
        self._started, self._ended = time.monotonic(), ""

    def __call__(self, source: str, event: Event) -> None:
        self._sink(source, event)
        kind = event["event"]
        if kind == "step" and isinstance(event.get("step"), int):
            self._note(event)
        elif kind == "evaluation" and event.get("done") == event.get("n"):
            self._board.change("evaluations", lambda: artifact_texts.evaluations(self._session))
        elif kind in ("stage", "skipped", "recovered"):
            self.look()

    def _note(self, event: Event) -> None:
        self._steps[event["step"]] = {name: event.get(name) for name in artifact_texts.COLUMNS}
        self._last = event
        self._board.change("progress", lambda: artifact_texts.progress(event))
        self._board.change("steps", lambda: artifact_texts.steps(dict(self._steps), self._session.request.run))
        if event["step"] % self._session.request.config.rl.checkpoint_every == 0:
            self.look()

    def _report(self) -> Artifact:
        took = timedelta(seconds=int(time.monotonic() - self._started))
        return artifact_texts.report(self._session, self._ended, self._last, str(took))

    def look(self) -> None:
        """The run has come to another stage: everything that the store says may be new."""
        session = self._session
        self._board.change("report", self._report)
        self._board.change("links", lambda: artifact_texts.links(session))
        self._board.change("evaluations", lambda: artifact_texts.evaluations(session))

    def end(self, how: str) -> None:
        """The last look."""
        self._ended = how
        self.look()
