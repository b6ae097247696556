"""Artifacts of a run in Prefect: what they say, how seldom they are written, and that no failure disturbs a run."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings

from flows import artifact_texts
from flows.artifact_board import Artifact, Board, PrefectWrites
from flows.artifacts import prefix
from flows.cli import main

DEADLINE = 120.0


def until(done: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.01)


class Taken:
    """A stand-in for Prefect: keeps what is written, or fails while told to."""

    def __init__(self) -> None:
        self.written: list[tuple[str, Any]] = []
        self.fails = False
        self.tries = 0

    def __call__(self, name: str, artifact: Artifact) -> None:
        self.tries += 1
        if self.fails:
            raise httpx.ConnectError("no route\nto host")
        self.written.append((name, artifact.data))


def number(value: int) -> Callable[[], Artifact]:
    return lambda: Artifact("progress", value)


def test_a_thousand_quick_changes_are_few_writes_and_the_last_is_written() -> None:
    taken, said = Taken(), list[str]()
    board = Board(taken, said.append, seconds=3600)
    for value in range(1000):
        board.change("progress", number(value))
        board.change("steps", number(-value))
    board.close()
    assert len(taken.written) <= 4 and not said
    assert dict(taken.written) == {"progress": 999, "steps": -999}


def test_writes_go_to_the_server_that_the_run_talks_to() -> None:
    """A run without a Prefect server has one of its own, by a setting of its context: threads must not lose it."""
    url, seen = "http://127.0.0.1:9/api", list[str | None]()
    with temporary_settings({PREFECT_API_URL: url}):
        board = Board(lambda *_: seen.append(get_current_settings().api.url), print)
    board.change("progress", number(1))
    board.close()
    assert seen == [url]


def test_changes_between_rounds_are_put_together() -> None:
    taken = Taken()
    board = Board(taken, print, seconds=0.05)
    for value in range(5):
        board.change("progress", number(value))
        until(lambda value=value: ("progress", value) in taken.written, "a round")
    board.close()
    assert [data for _, data in taken.written] == [0, 1, 2, 3, 4]


def test_a_failure_is_told_once_and_made_up_for() -> None:
    taken, said = Taken(), list[str]()
    taken.fails = True
    board = Board(taken, said.append, seconds=0.01)
    board.change("progress", number(1))
    until(lambda: taken.tries, "a try")
    for value in range(2, 50):
        board.change("progress", number(value))
        time.sleep(0.001)
    tries = taken.tries
    board.change("steps", number(7))
    until(lambda: taken.tries > tries, "another try")
    taken.fails = False
    board.close()
    assert said == ["artifacts of this run can't be written (no route): the run goes on without them"]
    assert dict(taken.written) == {"progress": 49, "steps": 7}


def test_closing_does_not_wait_for_a_server_that_is_gone() -> None:
    taken, said = Taken(), list[str]()
    taken.fails = True
    board = Board(taken, said.append, seconds=3600)
    for name in ("a", "b", "c", "d"):
        board.change(name, number(1))
    board.close()
    assert taken.tries <= 3 and len(said) == 1, "one failure ends a round"


def test_a_long_table_keeps_its_ends_and_is_spread_evenly() -> None:
    found = {step: {"step": step, "reward": 0.5, "staleness_mean": 1.0} for step in range(1, 5001)}
    shown = artifact_texts.steps(found, "small")
    assert shown is not None and "4800 of 5000 steps are left out" in shown.description
    rows = json.loads(shown.data)
    assert len(rows) == artifact_texts.ROWS and (rows[0]["step"], rows[-1]["step"]) == ("1", "5000")
    assert rows[0] == {
        "step": "1", "reward": "0.500", "success": "–", "staleness_mean": "1.00", "staleness_max": "–",
        "trainer_idle_ratio": "–", "tokens_per_second": "–",
    }  # fmt: skip


def test_what_people_wrote_is_shown_as_it_is() -> None:
    assert artifact_texts._plain("<b>|x|\n[a](b)") == "\\<b\\>\\|x\\| \\[a\\](b)"
    assert (prefix("Nightly_1.2"), prefix("ÄÖ")) == ("nightly-1-2", "run")


def read(key: str) -> list[Any]:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
    return sorted(found, key=lambda a: str(a.created))


@pytest.mark.usefixtures("prefect_server", "fakes")
def test_a_run_leaves_its_artifacts_and_a_continued_one_new_versions(
    project: Path, root: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[str] = []
    write = PrefectWrites.__call__
    monkeypatch.setattr(
        PrefectWrites, "__call__", lambda self, name, found: (writes.append(name), write(self, name, found))[1]
    )
    config = [str(project / "small.toml"), "--root", root, "--run", "Shown-1", "--set", "rl.checkpoint_every=500"]
    assert main(["run", *config, "--set", "rl.steps=1000"]) == 0, capsys.readouterr().err
    (progress,), (steps,), (evaluations,) = (read(f"shown-1-{name}") for name in ("progress", "steps", "evaluations"))
    (report,), (links,) = read("shown-1-report"), read("shown-1-links")
    assert (progress.type, progress.data, progress.description) == ("progress", 100.0, "RL step 1000 of 1000")
    rows = json.loads(steps.data)
    assert rows[-1]["step"] == "1000" and rows[-1]["staleness_max"] == "2" and len(rows) <= artifact_texts.ROWS
    rows = {(row["of"], row["task set"]): row for row in json.loads(evaluations.data)}
    assert rows["warm-up", "evaluation.tasks"]["success"] == "50.0%"
    assert rows["candidate", "evaluation.tasks"]["95% interval"] == "90.0% to 100.0%"
    assert report.data.startswith("# Shown-1: finished") and "## The gate: promoted" in report.data
    assert "| habit | finished |" in report.data and "| improvement |" in report.data
    assert f"`{root}/runs/Shown-1/rl-" in links.data or "/runs/Shown-1/rl-" in links.data
    for what in ("checkpoint Shown-1@1000", "its ledger head", "decision of the gate", "channel `production`"):
        assert what in links.data
    assert progress.flow_run_id == report.flow_run_id is not None
    assert writes.count("steps") <= 20, "a thousand steps, few writes"

    assert main(["run", *config, "--set", "rl.steps=1001"]) == 0, capsys.readouterr().err
    assert [a.data for a in read("shown-1-progress")] == [100.0, 100.0]
    assert len(read("shown-1-report")) == 2


@pytest.mark.usefixtures("prefect_server", "fakes")
def test_a_prefect_that_takes_no_artifacts_disturbs_nobody(
    project: Path, root: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise httpx.ReadTimeout("")

    monkeypatch.setattr(PrefectWrites, "__call__", refuse)
    assert main(["run", str(project / "small.toml"), "--root", root]) == 0
    out = capsys.readouterr().out
    assert out.count("artifacts: artifacts of this run can't be written (ReadTimeout)") == 1 and "promoted:" in out
    assert not [t for t in threading.enumerate() if t.name == "artifacts"]


@pytest.mark.usefixtures("prefect_server", "fakes")
def test_a_failed_run_says_so_in_its_report(
    project: Path, root: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LEARNER", "fails")
    assert main(["run", str(project / "small.toml"), "--root", root, "--run", "sad"]) == 1
    (report,) = read("sad-report")
    assert report.data.startswith("# sad: ended (the loss is not a number at step 0)")
