"""Evaluation beside training by a deployment: fired by the run's event, killed, missed, and made all the same.

The first test has the real learner and engines; in the second, what nobody told of is found by the schedule.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import real_run
from support.begun import EVERY, begun, commit
from support.prefect_site import PREFECT, Site
from support.recount import count_stage
from support.scheduled import Scheduled, real

from schemas import keys
from schemas.evaluation import EvaluationReport
from tasks.status import reports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
STEPS = 100


@pytest.fixture
def watched(site: Site, tmp_path: Path) -> Iterator[Scheduled]:
    """A schedule whose runs let a deployment evaluate their checkpoints 30, 60 and 90.

    Evaluators have the environment in a folder of their own: what slows training down does not slow them.
    """
    made, elsewhere = real(site, tmp_path, "watched"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    for folder in (tmp_path, elsewhere):
        (folder / "slow.py").write_text(real_run.PACED)
        (folder / "pace").write_text("0.5")
    made.deploy(
        "--job-variable", f"env.HEADRACE_FOLDER={elsewhere}",
        *settings(
            f"rl.steps={STEPS}", "evaluation.every=6", "evaluation.infrastructure=deployment",
            "evaluation.deployment=evaluate-run/watched",
        ),
    )  # fmt: skip
    try:
        yield made
    finally:
        made.close()


def settings(*chosen: str) -> list[str]:
    return [word for setting in chosen for word in ("--set", setting)]


def report_of(schedule: Scheduled, step: int) -> list[EvaluationReport]:
    return [r for run in schedule.runs() for r in reports(schedule.store, run) if r.checkpoint == f"{run}@{step}"]


def committed(schedule: Scheduled, step: int) -> bool:
    return any(key.endswith(f"checkpoints/{step:08d}/manifest.json") for key in schedule.store.list("runs/"))


def steps(schedule: Scheduled) -> int:
    return len([key for key in schedule.store.list("runs/") if "/ledger/" in key])


def test_a_checkpoint_is_evaluated_by_its_event_while_training_goes_on(watched: Scheduled) -> None:
    watched.worker()
    firing = watched.fire()
    watched.timed("30 steps", lambda: committed(watched, 30))
    watched.pace(20.0)
    watched.timed("committed → a flow run is created", lambda: watched.site.runs("evaluate-run/watched"))
    watched.timed("created → it plays", lambda: watched.family("rollout.evaluate"))
    before = steps(watched)
    watched.timed("it plays → the reports of start and checkpoint", lambda: report_of(watched, 30))
    (manifest,) = watched.runs().values()
    base = keys.rl(manifest.run, manifest.stages["rl"])
    watched.timings["steps made meanwhile"] = steps(watched) - before
    before = steps(watched)
    watched.timed("a step after the report", lambda: steps(watched) > before)
    assert steps(watched) < STEPS and watched.store.head(keys.rl_manifest(base)) is None
    first = watched.site.runs("evaluate-run/watched")[0]
    assert first.parameters == {"root": watched.root, "run": manifest.run} and not first.auto_scheduled

    watched.pace(0.5)
    watched.timed("30 more steps", lambda: committed(watched, 60))
    watched.pace(20.0)
    watched.timed("committed → it is played", lambda: names(watched) == ["step 60"])
    (player,) = watched.family("rollout.evaluate")
    flow, before = player.parent(), steps(watched)
    assert flow is not None
    flow.kill()
    watched.timed("kill -9 of the evaluator → its process is gone", lambda: watched.gone([player]))
    watched.timed("training goes on", lambda: steps(watched) > before)
    assert not report_of(watched, 60)

    watched.pace(0.0)
    watched.timed("the run ends", lambda: watched.site.state(firing) == "COMPLETED", 900)
    (manifest,) = watched.runs().values()
    made = [r.name for r in reports(watched.store, manifest.run) if r.setting == "evaluation.tasks"]
    assert made == ["warm-up", "step 30", "step 60", "step 90", "candidate"], "the end made what was due"
    told = json.loads(watched.headrace("audit", "verify", manifest.run, "--json"))
    assert told["ok"] and told["dispositions"]["trained"] == STEPS * real_run.ROWS
    assert count_stage(Path(watched.root) / base)["ok"]


def names(schedule: Scheduled) -> list[str]:
    """What evaluations are being played, as their specifications call them."""
    found = []
    for process in schedule.family("rollout.evaluate"):
        words = process.cmdline()
        spec = schedule.store.get(words[words.index("--spec") + 1])
        found.append(json.loads(spec.data)["name"])
    return found


def test_what_no_event_told_of_is_found_on_schedule(scheduled: Scheduled) -> None:
    elsewhere = f"evaluate-run/{scheduled.name}"
    scheduled.deploy(
        "--evaluate", "* * * * *",
        *settings("evaluation.infrastructure=deployment", f"evaluation.deployment={elsewhere}"),
    )  # fmt: skip
    session = begun(scheduled.host.folder, scheduled.root, *EVERY, run=scheduled.name)
    commit(session, 2, 4)
    scheduled.worker()
    scheduled.timed("due → made by the schedule", lambda: report_of(scheduled, 4))
    assert all(flow.auto_scheduled for flow in scheduled.site.runs(elsewhere))
    assert not report_of(scheduled, 2)

    paused = scheduled.host.call(PREFECT, "deployment", "schedule", "clear", elsewhere, "--accept-yes")
    assert paused.returncode == 0, paused.stderr
    commit(session, 8)
    said = scheduled.headrace("eval", "--due")
    assert said.splitlines()[-1] == "1 made" and report_of(scheduled, 8)
