"""The whole command with its root in a bucket of the fake Google Cloud Storage."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import real_run
from support.fake_gcs import FakeGcs
from support.fake_gcs_faults import Rates

from flows.cli import main

ROOT = "gs://bucket/runs-of-mine"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGcs]:
    with FakeGcs("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.mark.usefixtures("prefect_server", "fakes")
def test_from_nothing_to_a_champion_with_stand_ins(
    project: Path, fake: FakeGcs, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.faults.rates = Rates.some(0.01)
    command = ["run", str(project / "small.toml"), "--root", ROOT]
    assert main(command) == 0, capsys.readouterr().err
    assert "promoted:" in capsys.readouterr().out
    assert main(command) == 0 and "is finished: nothing to do" in capsys.readouterr().out
    assert main(["status", "small", "--root", ROOT, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "finished"


def test_what_is_wrong_with_a_bucket_is_one_sentence(
    project: Path, fake: FakeGcs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(project / "small.toml"), "--root", "gs://missing/x"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("headrace: the store gs://missing/x can't be used: there is no bucket missing")
    assert said.count("\n") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_real_processes_write_no_object_twice_in_a_second(tmp_path: Path, fake: FakeGcs) -> None:
    """Though the configuration asks for a window every 0.05 s and a heartbeat every 0.3 s."""
    fake.faults.rates = Rates.some(0.005, latency=0.01)
    from prefect.settings import get_current_settings

    project = real_run.lay_out(tmp_path, str(get_current_settings().api.url))
    env = {"STORAGE_EMULATOR_HOST": os.environ["STORAGE_EMULATOR_HOST"]}
    project = real_run.Project(project.folder, ROOT, project.environment)  # type: ignore[arg-type]
    ran = project.headrace("run", **env)
    assert ran.returncode == 0 and "step 24/24" in ran.stdout, ran.stdout + ran.stderr
    found = json.loads(project.headrace("audit", "verify", "small", "--json", **env).stdout)
    assert found["ok"] and found["dispositions"] == {"trained": real_run.STEPS * real_run.ROWS}
    assert fake.bucket("bucket").hasty == []
