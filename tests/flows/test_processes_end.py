"""One process of each kind is killed, frozen or told to end in a run of stand-ins."""

import signal
from pathlib import Path

import pytest

from flows.cli import main
from storage.open import open_store
from tasks.record import read_run

pytestmark = [pytest.mark.usefixtures("prefect_server", "fakes"), pytest.mark.slow]
SAID = {
    signal.SIGKILL: "was killed by SIGKILL; starting it again",
    signal.SIGSTOP: "made no progress for 2 s and was killed; starting it again",
}

ENDED = {
    "warm_up": "the warm-up stage habit ended without its manifest: run again",
    "learner": "the learner ended without the manifest of its stage: run again",
    "evaluate": "ended without a report: run again",
}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("what", ["warm_up", "learner", "worker", "evaluate"])
def test_a_process_that_ends_or_hangs_is_started_again(
    what: str, how: signal.Signals, project: Path, root: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("FAKE_SIGNAL", f"{what} {int(how)} {project / 'sent'}")
    monkeypatch.setenv("FAKE_STEP_SECONDS", "5" if what == "worker" else "0")
    settings = ("--set", "supervision.silence_seconds=2")
    code = main(["run", str(project / "small.toml"), "--root", root, *settings])
    out = capsys.readouterr()
    assert code == 0, out.err
    assert out.out.count(SAID[how]) == 1 and "promoted:" in out.out
    left = read_run(open_store(root), "small")
    assert left is not None and left.state == "finished"


@pytest.mark.parametrize("what", ENDED)
def test_a_process_that_is_told_to_end_ends_the_run_with_a_sentence(
    what: str, project: Path, root: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_SIGNAL", f"{what} {int(signal.SIGTERM)} {project / 'sent'}")
    monkeypatch.setenv("FAKE_EVALUATION_SECONDS", "1")
    assert main(["run", str(project / "small.toml"), "--root", root]) == 1
    out = capsys.readouterr()
    assert ENDED[what] in out.err and out.err.count("\n") == 1 and "starting it again" not in out.out
    assert main(["run", str(project / "small.toml"), "--root", root]) == 0, "the next one goes on"


def test_a_worker_that_is_told_to_end_is_started_again_while_rl_goes_on(
    project: Path, root: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_SIGNAL", f"worker {int(signal.SIGTERM)} {project / 'sent'}")
    monkeypatch.setenv("FAKE_STEP_SECONDS", "5")
    assert main(["run", str(project / "small.toml"), "--root", root]) == 0, capsys.readouterr().err
    assert len([key for key in open_store(root).list("runs/small/") if "/workers/" in key]) == 3
