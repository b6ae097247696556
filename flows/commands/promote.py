"""`headrace promote RUN[@STEP]`: the gate compares a checkpoint with the champion; refused is exit code 1.

With `--approve NAME` a person agrees here and now; a run that waits for a person is told instead.
"""

import argparse
import json
import sys

from flows import beside
from flows.lines import Lines
from schemas import keys
from schemas.errors import RequestError, RunStopped
from schemas.promotion import GateDecision
from storage.objects import ObjectStore
from storage.open import open_store
from tasks import questions
from tasks.checkpoints import Checkpoint, find
from tasks.gate import Case
from tasks.lease import is_alive
from tasks.promote import Answer
from tasks.request import root_url


def main(args: argparse.Namespace) -> None:
    store = open_store(root_url(args.root))
    if args.approve is not None and not args.approve.strip():
        raise RequestError("--approve needs the name of the person who agrees")
    checkpoint = find(store, args.checkpoint)
    if _run_waits(store, checkpoint, args.channel):
        _tell_run(store, checkpoint, args)
        return
    progress = Lines(sys.stderr if args.json else sys.stdout)
    decision = beside.promote(
        checkpoint, lambda case, found: _answer(case, found, args.approve), args.channel, progress
    )
    if args.json:
        print(decision.model_dump_json(indent=2))
    else:
        print("\n".join(_lines(decision)))
    if not decision.promoted:
        raise RunStopped(f"not promoted: {decision.reason}")
    if not args.json:
        print(f"promoted: {decision.reason}")


def _answer(case: Case, found: GateDecision, name: str | None) -> Answer:
    if name:
        return Answer(True, name.strip())
    raise RunStopped(
        f"{found.candidate} passed every other check and needs a person: `headrace promote {case.ref} --approve NAME`"
    )


def _run_waits(store: ObjectStore, checkpoint: Checkpoint, channel: str | None) -> bool:
    """Whether the run itself is being driven and asks a person about this checkpoint."""
    question = questions.read(store, beside.gate_base(checkpoint, channel))
    return question is not None and question.open and is_alive(store, keys.run_lease(checkpoint.request.run))


def _tell_run(store: ObjectStore, checkpoint: Checkpoint, args: argparse.Namespace) -> None:
    """Give the approval that the run waits for."""
    run = checkpoint.request.run
    if not args.approve:
        raise RunStopped(f"run {run} waits for a person: `headrace promote {checkpoint.ref} --approve NAME` to agree")
    found = questions.answer(store, beside.gate_base(checkpoint, args.channel), agreed=True, name=args.approve.strip())
    if args.json:
        print(json.dumps(found.model_dump(mode="json"), indent=2))
    else:
        said = "approves" if found.approved else "does not approve"
        print(f"run {run} waits for it and is told: {found.by} {said} {found.candidate}")


def _lines(decision: GateDecision) -> list[str]:
    width = max((len(c.name) for c in decision.checks), default=0)
    return [f"  {'ok' if c.ok else 'failed':<6}  {c.name:<{width}}  {c.text}" for c in decision.checks]
