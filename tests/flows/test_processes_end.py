"""One process of each kind is killed or frozen in a run of stand-ins: it is started again and the run ends well."""

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
