"""A run whose RL has begun, with fake arrays: the test commits its checkpoints, its processes are stand-ins."""

from pathlib import Path

from schemas import keys
from support.gated import fakes
from tasks import record, reinforce, scratch
from tasks.children import Event
from tasks.request import load
from tasks.session import Session, opened

EVERY = ("rl.checkpoint_every=2", "evaluation.every=2", "rl.steps=9")
"""Checkpoints 4 and 8 are evaluated."""


class Told(list[tuple[str, Event]]):
    """A sink that keeps what it is told."""

    def __call__(self, source: str, event: Event) -> None:
        self.append((source, event))

    def messages(self) -> list[str]:
        return [str(event["message"]) for _, event in self if "message" in event]


def begun(project: Path, root: str, *overrides: str, run: str = "small") -> Session:
    """The run as its driver has it, before the first step. `session.sink` is a `Told`."""
    request = load(str(project / "small.toml"), ["warm_up=[]", *overrides], root=root, run=run)
    with opened(request, record.prepare(request), lambda *_: None):
        pass
    manifest = record.read_run(request.store, request.run)
    assert manifest is not None
    session = Session(request, manifest, Told())
    scratch.make(request.store, request.config, request.warm_up_seed)
    reinforce.open_stage(session)
    return session


def commit(session: Session, *steps: int) -> str:
    """Commit checkpoints of these steps; returns the stage's folder."""
    base = keys.rl(session.request.run, session.survey().rl.key)
    for step in steps:
        fakes().leave_checkpoint(session.store, base, step)
    return base


def end(session: Session, step: int) -> None:
    """Let RL end at this step."""
    base = keys.rl(session.request.run, session.survey().rl.key)
    fakes().leave_manifest(session.store, base, step, *fakes().leave_checkpoint(session.store, base, step))
