"""A run that this process drives: its request, its stop signal, where its events go.

Flow and task bodies refer to this module, never to locks of their own: a flow that is served is pickled by value.
"""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from schemas import keys
from schemas.errors import HeadraceError, RunStopped
from schemas.manifest import RunManifest
from storage.expired import check_weights
from storage.objects import ObjectStore
from tasks import record
from tasks.children import Event
from tasks.lease import hold
from tasks.request import Request, keep_data
from tasks.survey import Survey, survey

Sink = Callable[[str, Event], None]
"""Takes (source, event): `worker-0`, `learner`, … and what it said."""


@dataclass
class Session:
    """The state of one driven run. `cause` is the first reason to stop that is nobody's wish."""

    request: Request
    record: RunManifest
    sink: Sink
    stop: threading.Event = field(default_factory=threading.Event)
    learned: threading.Event = field(default_factory=threading.Event)
    """The learner has ended, one way or another."""
    committed: threading.Event = field(default_factory=threading.Event)
    """A checkpoint that is to be evaluated was committed since somebody looked."""
    cause: HeadraceError | None = None
    evaluating: threading.Semaphore = field(init=False)
    """As many evaluations as may run side by side."""
    own_workers: set[str] = field(default_factory=set)
    """Ids of the rollout workers that this process started and that have spoken."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.evaluating = threading.Semaphore(self.request.config.evaluation.workers)

    @property
    def store(self) -> ObjectStore:
        return self.request.store

    def survey(self) -> Survey:
        """How far the run is, from its manifests."""
        return survey(self.request, self.record)

    def tell(self, source: str, event: Event) -> None:
        """Pass an event on, one at a time."""
        with self._lock:
            self.sink(source, event)

    def fail(self, error: HeadraceError) -> None:
        """Stop everything for a cause; the first one is kept."""
        if self.cause is None:
            self.cause = error
        self.stop.set()

    def note_stages(self) -> None:
        """Write the keys that are known by now into run.json."""
        found = self.survey()
        stages = {s.name: s.key for s in found.stages if s.key}
        opened = tuple(dict.fromkeys([*self.record.rl_keys, *([found.rl.key] if found.rl.key else [])]))
        if (stages, opened) != (self.record.stages, self.record.rl_keys):
            self.record = record.change(self.store, self.request.run, stages=stages, rl_keys=opened)

    def note_flow_run(self, flow_run: str) -> None:
        """Write into run.json which flow run of Prefect's drives the run."""
        if flow_run not in self.record.flow_runs:
            found = (*self.record.flow_runs, flow_run)
            self.record = record.change(self.store, self.request.run, flow_runs=found)


_sessions: dict[str, Session] = {}


def current(run: str) -> Session:
    """The session of a run in this process."""
    return _sessions[run]


def is_open(run: str) -> bool:
    """Whether this process drives the run."""
    return run in _sessions


def fail_all(error: HeadraceError) -> None:
    """Stop every run that this process drives for a cause."""
    for session in list(_sessions.values()):
        session.fail(error)


@contextmanager
def opened(request: Request, manifest: RunManifest, sink: Sink, *, aside: bool = False) -> Generator[Session]:
    """Drive a run for the time of a block: hold its lease, write its manifest, and say at the end how it ended.

    `aside`: work beside the run itself (such as evaluating an old checkpoint), which leaves its manifest as it is.
    """
    session = Session(request, manifest, sink)

    def lost() -> None:
        session.fail(RunStopped(f"another process has taken over run {request.run}: this one stops"))

    with hold(request.store, keys.run_lease(request.run), f"run {request.run}", run=request.run, on_lost=lost) as lease:
        if not aside:
            keep_data(request)
            session.record = manifest.model_copy(update={"state": "running", "reason": ""})
            record.save(request.store, session.record)
        _sessions[request.run] = session
        try:
            if not aside and session.record.initial is not None:  # it is written down: what is there by now will stay
                check_weights(request.store, session.record.initial)
            yield session
        except BaseException as error:
            _close(session, lease.lost or aside, "failed" if isinstance(error, Exception) else "stopped", error)
            raise
        else:
            _close(session, lease.lost or aside, "finished", None)
        finally:
            session.stop.set()
            del _sessions[request.run]


def _close(session: Session, silent: bool, state: str, error: BaseException | None) -> None:
    if not silent:
        reason = (str(error) or type(error).__name__) if error is not None else ""
        record.change(session.store, session.request.run, state=state, reason=reason)
