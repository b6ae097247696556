"""The warm-up stages: one process each, known as finished by its manifest."""

from schemas import keys
from schemas.errors import RunStopped
from schemas.manifest import Parent, WarmUpSpec
from schemas.selection import Selection
from tasks import processes
from tasks.children import Command
from tasks.session import Session
from tasks.sources import DataFile
from tasks.supervise import keep_running
from tasks.survey import Stage


def warm_up(session: Session, name: str) -> str:
    """Do the named stage unless it is finished; returns its key."""
    stage = _find(session, name)
    if stage.state == "finished":
        session.tell(name, {"event": "skipped", "name": name, "key": stage.key})
        return stage.key
    session.tell(name, {"event": "stage", "name": name, "key": stage.key})
    root = session.store.url
    command = processes.scratch(root, session.request.run) if stage.kind == "scratch" else _trained(session, stage)
    silence = session.request.config.supervision.silence_seconds
    keep_running(command, lambda e: session.tell(name, e), stop=session.stop.is_set, silence=silence)
    if _find(session, name).state != "finished" and not session.stop.is_set():
        raise RunStopped(f"the warm-up stage {name} ended without its manifest: run again, and look at its messages")
    return stage.key


def _find(session: Session, name: str) -> Stage:
    return next(s for s in session.survey().warm_ups if s.name == name)


def _trained(session: Session, stage: Stage) -> Command:
    """Write the stage's spec and make the command that follows it."""
    request = session.request
    data = request.data[f"warm_up.{stage.name}"]
    inputs = data_inputs(data)
    if stage.parent is not None:
        kind = "stage" if stage.parent.origin.startswith("stages/") else "weights"
        inputs.append(Parent(kind=kind, ref=stage.parent.origin or stage.parent.prefix, sha256=stage.parent.sha256))
    spec = WarmUpSpec(
        stage=stage.name,
        key=stage.key,
        config=session.record.config,
        seed=request.warm_up_seed,
        initial=stage.parent,
        data=data.key,
        data_sha256=data.sha256,
        inputs=tuple(inputs),
    )
    key = keys.spec(keys.stage(stage.name, stage.key))
    session.store.put(key, spec.to_bytes())
    return processes.warm_up(session.store.url, stage.name, key)


def data_inputs(data: DataFile) -> list[Parent]:
    """The data file; or the selection and the run, up to a ledger head, that it was made from."""
    if data.suffix != "json":
        return [Parent(kind="data", ref=data.key, sha256=data.sha256)]
    taken = Selection.from_bytes(data.data, data.key)
    source = Parent(kind="run", ref=keys.rl(taken.run, taken.rl), sha256=taken.ledger_head)
    return [Parent(kind="log", ref=data.key, sha256=data.sha256), source]
