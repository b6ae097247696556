"""Joining a run from any machine that reaches its store: worker processes that need nothing else of its driver.

They come and go as they like. They leave when RL has ended, when they are told to, or when nobody drives the run any
more; what they held is then free for others.
"""

import contextvars
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from models.user_modules import environment_sha256
from schemas.config import Run
from schemas.errors import HeadraceError, RequestError, RunStopped
from schemas.manifest import RLSpec
from storage.objects import ObjectStore
from storage.quarantine import deadly
from tasks import processes
from tasks.children import Event
from tasks.run_watch import RunWatch, Sight
from tasks.supervise import WORKERS, keep_running

LOOK_SECONDS = 2.0
"""How often the run is looked at; a few small reads."""

Sink = Callable[[str, Event], None]


def check_joinable(store: ObjectStore, run: str, folder: str = "") -> Sight:
    """The first look at a run. RequestError where workers on this machine can't join it."""
    check_store(store)
    sight, folder = RunWatch(store, run).look(), modules_folder(folder)
    if sight.phase == "over":
        raise RequestError(f"the RL of run {run} has ended: there is nothing to roll out")
    if sight.spec is not None:
        check_modules(sight.spec, sight.config, folder)
    return sight


def modules_folder(given: str) -> str:
    """Where the user's modules lie on this machine: as given, else HEADRACE_FOLDER; empty: where the run has them."""
    return given or os.environ.get("HEADRACE_FOLDER", "")


def check_store(store: ObjectStore) -> None:
    """RequestError where other processes can't reach the store."""
    if store.url.startswith("memory://"):
        raise RequestError(f"{store.url} lives in one process: workers join by a folder or a store that they share")


def check_modules(spec: RLSpec, config: Run, folder: str) -> None:
    """RequestError where this machine lacks the user's modules of the stage, or has others."""
    where = Path(folder or spec.folder)
    try:
        found = environment_sha256(config, where)
    except RequestError as error:
        raise RequestError(
            f"{error}: run {spec.run} uses modules of its own, and a worker needs the same files: copy the folder "
            f"here and name it with --folder or HEADRACE_FOLDER"
        ) from error
    if found != spec.environment_sha256:
        raise RequestError(
            f"the modules in {where} are not those of run {spec.run} (digest {found[:12] or 'of none'}, the run has "
            f"{spec.environment_sha256[:12] or 'none'}): copy the run's files here, or name their folder with "
            f"--folder or HEADRACE_FOLDER"
        )


def join(
    store: ObjectStore,
    run: str,
    *,
    sink: Sink,
    stop: threading.Event,
    base: str = "",
    workers: int = 1,
    first: int | None = None,
    folder: str = "",
) -> str:
    """Keep `workers` workers at a run until its RL ends; returns why they left.

    `base` binds them to one RL stage; otherwise they follow the run from stage to stage. `first` numbers them; by
    default after the workers that registered before. RequestError and RunStopped with the cause where they can't go on.
    """
    check_store(store)
    watch, crew = RunWatch(store, run, base), Crew(store, sink, workers, first, modules_folder(folder))
    waited = False
    try:
        while not stop.is_set():
            sight = watch.look()
            if sight.phase in ("over", "moved"):
                return f"the RL of run {run} has ended" if sight.phase == "over" else f"run {run} left this RL stage"
            _check_driven(run, sight)
            if sight.phase == "open" and sight.spec is not None:
                crew.man(sight.spec, sight.base, sight.config)
            elif not waited:
                sink("join", {"event": "log", "message": f"run {run} has no open RL window yet: waiting for it"})
            waited = sight.phase != "open"
            crew.wait(stop, LOOK_SECONDS)
    finally:
        crew.leave()
    return "stopped"


def _check_driven(run: str, sight: Sight) -> None:
    if sight.silent > sight.config.rollout.driver_seconds:
        raise RunStopped(
            f"nobody has driven run {run} for {sight.silent:.0f} s (rollout.driver_seconds): its workers leave; "
            f"continue the run, then join again"
        )


class Crew:
    """Worker processes of this machine, each under a thread that supervises it."""

    def __init__(self, store: ObjectStore, sink: Sink, workers: int, first: int | None, folder: str) -> None:
        self._store, self._sink, self._workers, self._first, self._folder = store, sink, workers, first, folder
        self._base, self._threads, self._lock = "", dict[int, threading.Thread](), threading.Lock()
        self._stop, self._errors = threading.Event(), list[HeadraceError]()

    def man(self, spec: RLSpec, base: str, config: Run) -> None:
        """See to it that every worker is at work on this stage; those of another stage leave first."""
        if base != self._base:
            self.leave()
            check_modules(spec, config, self._folder)
            self._base, self._stop = base, threading.Event()
            self._first = registered(self._store, base) if self._first is None else self._first
        silence = config.supervision.silence_seconds
        for index in range(self._first or 0, (self._first or 0) + self._workers):
            thread = self._threads.get(index)
            if thread is None or not thread.is_alive():
                here = contextvars.copy_context()  # the sink may speak to Prefect, whose settings are of this context
                arguments = (self._keep, index, base, silence, self._stop)
                self._threads[index] = threading.Thread(target=here.run, args=arguments, name=f"worker-{index}")
                self._threads[index].start()

    def wait(self, stop: threading.Event, seconds: float) -> None:
        """Wait for the next look. Raises the cause with which a worker could not go on."""
        stop.wait(seconds)
        if self._errors:
            raise self._errors[0]

    def leave(self) -> None:
        """Ask the workers to finish what is safe, and wait until they are gone."""
        self._stop.set()
        for thread in self._threads.values():
            thread.join()
        self._threads.clear()

    def _keep(self, index: int, base: str, silence: float, stop: threading.Event) -> None:
        command = processes.worker(self._store.url, base, index, self._folder)
        try:
            keep_running(
                command,
                lambda event: self._tell(command.name, event),
                stop=stop.is_set,
                silence=silence,
                restarts=WORKERS,
                progress=partial(deadly, self._store, base),
            )
        except HeadraceError as error:
            self._errors.append(error)

    def _tell(self, source: str, event: Event) -> None:
        with self._lock:
            self._sink(source, event)


def registered(store: ObjectStore, base: str) -> int:
    """How many worker processes have registered with a stage so far."""
    return sum(1 for _ in store.list(f"{base}/workers/"))
