"""Commands that only read take a store that can't be written: an auditor's account, a snapshot, a full disk."""

import errno
import os
from pathlib import Path

import pytest
from support.gated import ended
from support.projects import fakes, project, root

from flows.cli import main
from storage import durable

__all__ = ["fakes", "project", "root"]


@pytest.fixture
def sealed(project: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with a run that has ended, which nothing can be written to any more."""
    ended(project, root)

    def fails(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(durable, "written", fails)
    monkeypatch.setattr(durable, "probe_links", fails)
    return root


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["status", "small"],
        ["quarantine", "list", "small"],
        ["history", "small", "--channel", "candidate"],
        ["champion", "small", "--channel", "candidate"],
        ["gc", "--dry-run"],
        ["audit", "verify", "small"],
        ["audit", "checkpoint", "small@3"],
    ],
)
def test_reading_works(sealed: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*command, "--root", sealed])
    said = capsys.readouterr()
    assert "can't be used" not in said.err
    assert code == (2 if "candidate" in command else 0), said.err


@pytest.mark.parametrize("command", [["gc"], ["promote", "small"], ["rollback", "small", "--reason", "x"]])
def test_writing_is_one_sentence(sealed: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--root", sealed]) == 2
    said = capsys.readouterr().err
    assert "can't be used: no space left on device; make some room there" in said and said.count("\n") == 1


def test_looking_makes_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--root", str(tmp_path / "typo")]) == 0
    assert not (tmp_path / "typo").exists()
    (tmp_path / "file").write_text("")
    assert main(["status", "--root", str(tmp_path / "file")]) == 2
    assert "is a file, not a folder" in capsys.readouterr().err
