"""`headrace eval`: a checkpoint's success on the held-out tasks and on suites, or whatever is due of a run.

It needs no lease of the run, so a run that trains is evaluated like any other.
"""

import argparse
import json
import sys
import threading

from flows import beside
from flows.lines import Lines
from schemas.errors import RequestError
from schemas.evaluation import EvaluationReport
from storage.audit_runs import folders
from storage.objects import ObjectStore
from storage.open import open_store
from tasks.checkpoints import Checkpoint, find, split
from tasks.evaluator import Evaluator
from tasks.figures import Evaluation, figures, on_suite
from tasks.record import existing_run
from tasks.request import root_url


def main(args: argparse.Namespace) -> None:
    store = open_store(root_url(args.root))
    sink = Lines(sys.stderr if args.json else sys.stdout)
    if args.due:
        tally = Evaluator(store, sink=sink, stop=threading.Event(), folder=args.folder).run(_runs(store, args))
        _show(tally.made, args, elsewhere=tally.elsewhere, expired=tally.expired)
        if not args.json:
            print("\n".join([*tally.expired, str(tally)]))
        return tally.check()
    if args.checkpoint is None:
        raise RequestError("name a checkpoint as RUN or RUN@STEP, or give --due for whatever is due")
    checkpoint = find(store, args.checkpoint, args.folder)
    _show(beside.evaluate(checkpoint, _wanted(checkpoint, args.suites), sink), args)


def _wanted(checkpoint: Checkpoint, suites: list[str]) -> list[Evaluation]:
    """Everything that is reported of a checkpoint, or these suites. RequestError for one that the run does not have."""
    known = [s.name for s in checkpoint.request.config.evaluation.suites]
    unknown = [name for name in suites if name not in known]
    if unknown:
        there = f"it has {', '.join(known)}" if known else "it has none"
        raise RequestError(f"run {checkpoint.request.run} has no suite `{unknown[0]}` in evaluation.suites: {there}")
    name = f"step {split(checkpoint.ref)[1]}"
    if not suites:
        return figures(checkpoint.request, name, checkpoint.ref, checkpoint.weights)
    return [on_suite(checkpoint.request, s, name, checkpoint.ref, checkpoint.weights) for s in dict.fromkeys(suites)]


def _runs(store: ObjectStore, args: argparse.Namespace) -> list[str]:
    """The runs whose due evaluations are asked for. RequestError where that is said in a way that does not fit."""
    if args.suites:
        raise RequestError("--due plays whatever is due, suites included: leave out --suite")
    if args.checkpoint is None:
        return list(folders(store, "runs/"))
    run, step = split(args.checkpoint)
    if step is not None:
        raise RequestError(f"--due looks at whole runs: give {run}, or leave out --due")
    return [existing_run(store, run).run]


def _show(reports: list[EvaluationReport], args: argparse.Namespace, **more: list[str]) -> None:
    if args.json:
        print(json.dumps({"reports": [r.model_dump(mode="json") for r in reports], **more}, indent=2))
    elif reports:
        print("\n".join(line for report in reports for line in _lines(report)))


def _lines(report: EvaluationReport) -> list[str]:
    """The figure, then pass@k and categories where they were asked for."""
    interval = f"[{report.low:.1%}, {report.high:.1%}]"
    suite = report.setting.removeprefix("evaluation.suites.") if "suites" in report.setting else ""
    where = f"{report.checkpoint}{f' on {suite}' if suite else ''} T={report.temperature:g}"
    head = f"{where}: success {report.success:.1%} {interval}"
    passes = [f"  pass@{k} {value:.1%}" for k, value in report.pass_at.items() if k > 1]
    kinds = [
        f"  {name}: {c.success:.1%} [{c.low:.1%}, {c.high:.1%}] on {c.n} episodes"
        for name, c in report.categories.items()
    ]
    return [f"{head} on {report.n} episodes", *passes, *kinds]
