"""`headrace promote RUN[@STEP]`: the gate compares a checkpoint with the champion; refused is exit code 1.

With `--approve NAME` or `--decline NAME` a person answers here and now; a run that waits for a person is told instead.
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
from tasks.questions import LONGEST_REASON
from tasks.request import root_url


def main(args: argparse.Namespace) -> None:
    store = open_store(root_url(args.root))
    answer = _given(args)
    checkpoint = find(store, args.checkpoint)
    if _run_waits(store, checkpoint, args.channel):
        _tell_run(store, checkpoint, args, answer)
        return
    _check(checkpoint, answer)
    progress = Lines(sys.stderr if args.json else sys.stdout)
    decision = beside.promote(checkpoint, lambda case, found: _answer(case, found, answer), args.channel, progress)
    if args.json:
        print(decision.model_dump_json(indent=2))
    else:
        print("\n".join(_lines(decision)))
    if not decision.promoted:
        raise RunStopped(f"not promoted: {decision.reason}")
    if answer is not None and not answer.agreed:
        raise RunStopped(f"{checkpoint.ref} is the champion already: `headrace rollback` goes back to another one")
    if not args.json:
        print(f"promoted: {decision.reason}")


def _given(args: argparse.Namespace) -> Answer | None:
    """The answer on the command line. RequestError where it lacks a name or a reason."""
    name, agreed = args.decline if args.approve is None else args.approve, args.approve is not None
    reason = args.reason.strip()
    if name is None:
        if reason:
            raise RequestError("--reason goes with --approve NAME or --decline NAME")
        return None
    if not name.strip():
        raise RequestError(f"{'--approve' if agreed else '--decline'} needs the name of the person who decides")
    if not agreed and not reason:
        raise RequestError("--decline needs --reason TEXT: the decision keeps who declined and why")
    if len(reason) > LONGEST_REASON:
        raise RequestError(f"--reason has {len(reason)} characters: at most {LONGEST_REASON} are kept")
    return Answer(agreed, name.strip(), reason)


def _check(checkpoint: Checkpoint, answer: Answer | None) -> None:
    """RequestError where somebody declines what nobody is asked about: the gate would promote it all the same."""
    if answer is not None and not answer.agreed and not checkpoint.request.config.promotion.approval:
        raise RequestError(
            f"--decline: the gate of run {checkpoint.request.run} asks nobody (promotion.approval = false): there is "
            f"nothing to decline"
        )


def _answer(case: Case, found: GateDecision, answer: Answer | None) -> Answer:
    if answer is not None:
        return answer
    raise RunStopped(
        f"{found.candidate} passed every other check and needs a person: "
        f"`headrace promote {case.ref} --approve NAME` (or --decline NAME)"
    )


def _run_waits(store: ObjectStore, checkpoint: Checkpoint, channel: str | None) -> bool:
    """Whether the run itself is being driven and asks a person about this checkpoint."""
    question = questions.read(store, beside.gate_base(checkpoint, channel))
    return question is not None and question.open and is_alive(store, keys.run_lease(checkpoint.request.run))


def _tell_run(store: ObjectStore, checkpoint: Checkpoint, args: argparse.Namespace, answer: Answer | None) -> None:
    """Give the answer that the run waits for."""
    run, ref = checkpoint.request.run, checkpoint.ref
    if answer is None:
        raise RunStopped(f"run {run} waits for a person: `headrace promote {ref} --approve NAME` (or --decline NAME)")
    base = beside.gate_base(checkpoint, args.channel)
    found = questions.answer(store, base, agreed=answer.agreed, name=answer.name, why=answer.why)
    if args.json:
        print(json.dumps(found.model_dump(mode="json"), indent=2))
    else:
        said = "approves" if found.approved else "does not approve"
        because = f" ({found.why})" if found.why else ""
        print(f"run {run} waits for it and is told: {found.by} {said} {found.candidate}{because}")


def _lines(decision: GateDecision) -> list[str]:
    width = max((len(c.name) for c in decision.checks), default=0)
    return [f"  {'ok' if c.ok else 'failed':<6}  {c.name:<{width}}  {c.text}" for c in decision.checks]
