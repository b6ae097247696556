"""`headrace eval RUN[@STEP]`: a checkpoint's success on the held-out tasks, at every temperature of its run."""

import argparse

from flows import beside
from schemas.evaluation import EvaluationReport
from storage.open import open_store
from tasks.checkpoints import find
from tasks.request import root_url
from tasks.survey import evaluation


def main(args: argparse.Namespace) -> None:
    checkpoint = find(open_store(root_url(args.root)), args.checkpoint)
    settings = checkpoint.request.config.evaluation
    wanted = [
        evaluation(
            checkpoint.request, "candidate", "evaluation.tasks", checkpoint.ref, checkpoint.weights, t, settings.samples
        )
        for t in settings.temperatures
    ]
    for report in beside.evaluate(checkpoint, wanted):
        print(_line(report))


def _line(report: EvaluationReport) -> str:
    interval = f"[{report.low:.1%}, {report.high:.1%}]"
    return (
        f"{report.checkpoint} T={report.temperature:g}: success {report.success:.1%} {interval} on {report.n} episodes"
    )
