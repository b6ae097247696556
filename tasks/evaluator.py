"""An evaluator: on any machine that reaches the store, it makes whatever is due of some runs, and leaves.

Any number of them may be at it: each evaluation is played by whoever holds its lease. One that fails is told at the end
and keeps no other from being made.
"""

import contextvars
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from schemas.errors import HeadraceError, RunStopped
from schemas.evaluation import EvaluationReport
from storage.objects import ObjectStore
from tasks.children import Event
from tasks.due import Due, due
from tasks.evaluate import play, source
from tasks.figures import Evaluation
from tasks.join import check_modules, check_store, modules_folder
from tasks.lease import LeaseTaken
from tasks.session import Session

Sink = Callable[[str, Event], None]


@dataclass
class Tally:
    """What an evaluator found and did."""

    made: list[EvaluationReport] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    """Evaluations that somebody else plays, in sentences."""
    expired: list[str] = field(default_factory=list)
    """Checkpoints that can't be evaluated any more, in sentences."""
    failed: list[HeadraceError] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [(len(self.made), "made"), (len(self.elsewhere), "played elsewhere"), (len(self.failed), "failed")]
        return ", ".join(f"{n} {what}" for n, what in parts if n) or "nothing is due"

    def check(self) -> None:
        """Raise the cause where something failed; the first one, where it was several."""
        if len(self.failed) == 1:
            raise self.failed[0]
        if self.failed:
            raise RunStopped(f"{self.failed[0]} (and {len(self.failed) - 1} more failed)")


class Evaluator:
    """Makes what is due. `folder`: where the user's modules lie on this machine."""

    def __init__(self, store: ObjectStore, *, sink: Sink, stop: threading.Event, folder: str = "") -> None:
        check_store(store)
        self._store, self._sink, self._stop, self._folder = store, sink, stop, modules_folder(folder)
        self._lock = threading.Lock()
        self.tally = Tally()

    def run(self, runs: Sequence[str]) -> Tally:
        """Make what is due of these runs, and what has become due meanwhile."""
        for name in runs:
            try:
                self._one(name)
            except HeadraceError as error:
                self._fail(f"run {name}", error)
        return self.tally

    def _one(self, run: str) -> None:
        tried: set[str] = set()
        while not self._stop.is_set():
            found = due(self._store, run, self._folder)
            fresh = [e for e in found.wanted if e.key not in tried] if found else []
            if found is None or not fresh:
                self.tally.expired += found.expired if found else ()
                return
            check_modules(found.spec, found.request.config, self._folder)
            self._play_all(found, fresh)
            tried |= {e.key for e in fresh}

    def _play_all(self, found: Due, wanted: list[Evaluation]) -> None:
        session = Session(found.request, found.record, self._tell, stop=self._stop)
        # The sink may speak to Prefect, whose settings are of this context.
        contexts = [contextvars.copy_context() for _ in wanted]
        with ThreadPoolExecutor(found.request.config.evaluation.workers) as pool:
            try:
                list(pool.map(lambda here, e: here.run(self._play, session, e), contexts, wanted))
            except BaseException:
                self._stop.set()
                raise

    def _play(self, session: Session, wanted: Evaluation) -> None:
        name = f"{session.request.run}: {source(wanted)}"
        if self._stop.is_set():
            return
        try:
            report = play(session, wanted)
        except LeaseTaken as error:
            self.tally.elsewhere.append(str(error))
            self._tell(name, {"event": "log", "message": str(error)})
        except HeadraceError as error:
            self._fail(name, error)
        else:
            self.tally.made += [report] if report else []

    def _fail(self, name: str, error: HeadraceError) -> None:
        self.tally.failed.append(error)
        self._tell(name, {"event": "log", "message": str(error)})

    def _tell(self, source: str, event: Event) -> None:
        with self._lock:
            self._sink(source, event)
