"""What a finished run says at the end: success before and after with intervals, and what the gate found."""

from tasks.figures import Evaluation
from tasks.survey import Survey


def summary(run: str, found: Survey) -> list[str]:
    """The lines, for people. Success is on the held-out problems, which decided nothing."""
    decision = found.decision
    promoted = decision is not None and decision.promoted
    labels = {"warm-up": "warm-up", "candidate": "promoted" if promoted else "candidate"}
    lines = [f"run {run}: {found.rl.ref}", *(_line(labels.get(e.name, e.name), e) for e in found.evaluations)]
    lines += [f"  {sentence}" for sentence in found.expired]
    return [*lines, f"  {'promoted' if promoted else 'not promoted'}: {decision.reason}"] if decision else lines


def _line(label: str, evaluation: Evaluation) -> str:
    how = "greedy" if evaluation.temperature == 0 else f"temperature {evaluation.temperature:g}"
    report = evaluation.report
    if report is None:
        return f"  {label:<10} {how:<14} not evaluated"
    interval = f"[{report.low:.1%}, {report.high:.1%}]"
    success = f"success {report.success:6.1%}  {report.confidence:.0%} interval {interval}"
    suite = evaluation.setting.removeprefix("evaluation.")
    where = "" if suite == "tasks" else f" of {suite}"
    return f"  {label:<10} {how:<14} {success} on {report.n} episodes{where}"
