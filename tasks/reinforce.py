"""Reinforcement learning: N workers beside the learner, each a process under a supervising call, or workers elsewhere.

They meet only in the store. The learner ends the stage; the workers leave when its window closes. When one of them
can't go on, all stop with the first cause.
"""

import time
from collections.abc import Callable
from functools import partial

from schemas import keys
from schemas.errors import HeadraceError, RunStopped
from schemas.manifest import RLSpec
from storage.control import read_window
from storage.objects import find
from storage.quarantine import deadly
from tasks import announce, processes
from tasks.children import Command, Event, Outcome, run_child
from tasks.elsewhere import WorkersElsewhere, shown
from tasks.fleet import Fleet
from tasks.last_step import LastStep
from tasks.members import run_members
from tasks.session import Session
from tasks.supervise import WORKERS, Restarts, keep_running
from tasks.survey import Stage, read_rl
from tasks.worker_pool import PoolUnreachable, PrefectPool, WorkerPool

ROUND_SECONDS = 2.0
"""How often workers elsewhere are looked at."""
LEAVE_SECONDS = 30.0
"""How long they may take to leave when RL has ended, before they are cancelled."""
STOP_SECONDS = 8.0
"""How long Prefect may refuse to cancel them."""


def open_stage(session: Session) -> str:
    """Write the stage's spec and return its folder. The spec follows settings outside the key (such as steps)."""
    stage = session.survey().rl
    if stage.parent is None:
        raise RunStopped(f"run {session.request.run} has no weights to start RL from: its warm-up is not finished")
    session.note_stages()
    base = keys.rl(session.request.run, stage.key)
    data, key = _spec(session, stage).to_bytes(), keys.spec(base)
    stored = find(session.store, key)
    if stored is None or stored.data != data:
        session.store.put(key, data)
    session.tell("rl", {"event": "stage", "name": "rl", "key": stage.key, "steps": session.request.config.rl.steps})
    return base


def roll_out(session: Session, base: str, index: int) -> str:
    """Keep worker `index` running until the stage ends; returns how it ended.

    A worker leaves when the window is closed. A stage that is continued is opened again by its learner, so nobody
    starts before that.
    """
    command, ended = processes.worker(session.store.url, base, index), "finished"
    while ended == "finished" and _window_opens(session, base):
        note = partial(_note_worker, session)
        ended = _keep(session, command, WORKERS, note, partial(deadly, session.store, base))
    return ended


def _note_worker(session: Session, event: Event) -> None:
    if event["event"] == "worker":
        session.own_workers.add(str(event.get("worker")))


def roll_out_elsewhere(session: Session, base: str, pool: WorkerPool | None = None) -> str:
    """Keep the run's workers on other machines until the stage ends; returns how it ended."""
    config = session.request.config
    pool = pool or PrefectPool(config.rollout.deployment, f"{session.store.url} {base}")
    fleet = Fleet(session.store, base, session.request.run, config, pool, session.tell)
    try:
        _watch(session, fleet)
    except HeadraceError as error:
        session.fail(error)
        return "failed"
    finally:
        _dismiss(session, fleet)
    return "stopped" if session.stop.is_set() else "finished"


def _watch(session: Session, fleet: Fleet) -> None:
    """Rounds until the learner has ended. While Prefect does not answer, what is at work stays at work."""
    unanswered = 0
    while not (session.stop.is_set() or session.learned.is_set()):
        try:
            fleet.round()
            unanswered = 0
        except PoolUnreachable as error:
            unanswered += 1
            if unanswered == 3:
                session.tell("workers", {"event": "log", "message": f"{error}; asking again until it does well"})
        end = time.monotonic() + ROUND_SECONDS
        while time.monotonic() < end and not session.stop.is_set() and not session.learned.wait(0.1):
            pass


def _dismiss(session: Session, fleet: Fleet) -> None:
    """Workers leave by themselves when RL has ended; what is left after a while, or at a stop, is cancelled."""
    end = time.monotonic() + (0.0 if session.stop.is_set() else LEAVE_SECONDS)
    while True:
        late = time.monotonic() - end
        try:
            if session.stop.is_set() or late > 0:
                return fleet.leave()
            if fleet.gone():
                return None
        except PoolUnreachable as error:
            if late > STOP_SECONDS:
                message = f"{error}: workers that it can't cancel leave by themselves (rollout.driver_seconds)"
                return session.tell("workers", {"event": "log", "message": message})
        time.sleep(0.5)


def _window_opens(session: Session, base: str) -> bool:
    """Wait while the window is closed; False once the learner has ended or everything stops."""
    while not (session.stop.is_set() or session.learned.is_set()):
        found = read_window(session.store, base)
        if found is None or not found[0].closed:
            return True
        session.learned.wait(0.5)
    return False


def learn(session: Session, base: str) -> str:
    """Keep the learner running until the stage ends; returns how it ended."""
    figures = LastStep(session.store, base)

    def note(event: Event) -> None:
        figures.note(event)
        announce.note(session, event)

    command, run = _learner(session, base)
    silence = 3 * session.request.config.rollout.lease_seconds
    others = WorkersElsewhere(session.store, base, session.tell, session.own_workers, silence)
    with shown(others, session.tell):
        ended = _keep(session, command, Restarts(limit=3), note, run=run)
    figures.flush()
    session.learned.set()
    manifest = read_rl(session.store, base)
    whole = manifest is not None and manifest.steps >= session.request.config.rl.steps
    if ended == "finished" and not whole:
        session.fail(RunStopped("the learner ended without the manifest of its stage: run again"))
    return ended


def _learner(session: Session, base: str) -> tuple[Command, Callable[..., Outcome]]:
    """The learner's command, and how it is run: as one child, or as several that live and end together."""
    count, root = session.request.config.rl.processes, session.store.url
    if count == 1:
        return processes.learner(root, base), run_child
    return processes.learner_member(root, base), partial(run_members, count=count)


def _keep(
    session: Session,
    command: Command,
    restarts: Restarts,
    note: Callable[[Event], None] = lambda event: None,
    progress: Callable[[], object] = lambda: None,
    run: Callable[..., Outcome] = run_child,
) -> str:
    def on_event(event: Event) -> None:
        note(event)
        session.tell(command.name, event)

    try:
        outcome = keep_running(
            command,
            on_event,
            stop=session.stop.is_set,
            silence=session.request.config.supervision.silence_seconds,
            restarts=restarts,
            progress=progress,
            run=run,
        )
    except HeadraceError as error:
        session.fail(error)
        return "failed"
    return "stopped" if outcome.stopped else "finished"


def _spec(session: Session, stage: Stage) -> RLSpec:
    request, tasks = session.request, session.request.data["rl.tasks"]
    if stage.parent is None:
        raise RunStopped("RL has no weights to start from")
    return RLSpec(
        run=request.run,
        key=stage.key,
        config=session.record.config,
        folder=str(request.folder),
        seed=request.seed,
        initial=stage.parent,
        tasks=tasks.key,
        tasks_sha256=tasks.sha256,
        environment_sha256=request.environment_sha256,
    )
