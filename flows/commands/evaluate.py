"""`headrace eval RUN[@STEP]`: a checkpoint's success on the held-out tasks and on every suite."""

import argparse

from flows import beside
from schemas.evaluation import EvaluationReport
from storage.open import open_store
from tasks.checkpoints import find
from tasks.request import root_url
from tasks.survey import figures


def main(args: argparse.Namespace) -> None:
    checkpoint = find(open_store(root_url(args.root)), args.checkpoint)
    wanted = figures(checkpoint.request, "candidate", checkpoint.ref, checkpoint.weights)
    for report in beside.evaluate(checkpoint, wanted):
        print("\n".join(_lines(report)))


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
