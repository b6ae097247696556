"""`headrace gc` from the command line, and the commands that meet an expired checkpoint afterwards."""

import json
import os
from pathlib import Path

import pytest
from support.expiring import expire
from support.gated import ended, fakes

from flows.cli import main
from schemas import keys
from schemas.errors import RequestError
from storage.open import open_store
from tasks import record, session
from tasks.request import load

NOW = ["retention.min_age_hours=0", "retention.keep_last=1", "rl.max_staleness=0"]


@pytest.fixture
def base(project: Path, root: str) -> str:
    """A run with checkpoints 1, 2 and 3 that has ended."""
    case = ended(project, root, *NOW)
    store, base = case.session.store, keys.rl("small", case.session.survey().rl.key)
    for key in store.list(f"{base}/ledger/"):
        store.delete(key)
    for step in (1, 2, 3):
        policy, head = fakes().leave_checkpoint(store, base, step)
    fakes().leave_manifest(store, base, step, policy, head)
    return base


def headrace(root: str, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main([*argv, "--root", root])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_the_table_the_total_and_json(base: str, root: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = headrace(root, capsys, "gc", "--dry-run")
    assert code == 0 and "small: would remove 1" in out and "keep_last = 1" in out
    assert any(line.split()[:2] == ["checkpoint", "small@1"] and "would go" in line for line in out.splitlines())
    dry = json.loads(headrace(root, capsys, "gc", "small", "--dry-run", "--json")[1])
    code, out, _ = headrace(root, capsys, "gc", "small", "--json")
    done = json.loads(out)
    size = sum(map(len, fakes().SHAPE_AND_TOKENIZER.values()))
    assert code == 0 and done["removed_bytes"] == dry["removed_bytes"] == size
    items = {i["name"]: (i["kept"], i["why"]) for i in done["runs"][0]["items"]}
    assert items["small@1"] == (False, "keep_last = 1")
    assert items["small@2"] == (True, "one of the newest 2 policies") and items["small@3"][0]
    code, out, _ = headrace(root, capsys, "gc")
    assert code == 0 and "small: removed 0" in out and "1 expired before" in out
    assert "1 of 3 checkpoints have expired" in headrace(root, capsys, "audit", "verify", "small")[1]


def test_every_command_that_meets_one_says_what_it_was(
    base: str, project: Path, root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expire(open_store(root), base, 2)
    config = str(project / "small.toml")
    for argv in (
        ["eval", "small@2"],
        ["promote", "small@2"],
        ["export", "small@2", "--out", str(tmp_path / "out")],
        ["run", config, "--run", "child", "--set", "model.path=small@2", "--set", "warm_up=[]"],
        ["validate", config, "--set", "model.path=small@2", "--set", "warm_up=[]"],
    ):
        code, _, err = headrace(root, capsys, *argv)
        assert code == 2 and err.count("\n") == 1, (argv, err)
        assert "small@2's snapshot and weights expired on 2026-09-21 (keep_last = 1)" in err
        assert "`headrace audit replay small@2 --weights FOLDER` retrains it from small@1" in err
    code, out, err = headrace(root, capsys, "audit", "checkpoint", "small@2")
    assert code == 0 and "small@2: weights" in out and "expired on 2026-09-21" in err


def test_a_run_that_started_from_it_meanwhile_is_stopped_before_it_works(base: str, project: Path, root: str) -> None:
    """Its `run.json` is written, and the tombstone looked for afterwards."""
    overrides = [*NOW, "model.path=small@2", "warm_up=[]"]
    request = load(str(project / "small.toml"), overrides, root=root, run="child")
    manifest = record.prepare(request)
    expire(request.store, base, 2)
    with (
        pytest.raises(RequestError, match="small@2's snapshot and weights expired"),
        session.opened(request, manifest, lambda source, event: None),
    ):
        pytest.fail("it went on")
    standing = record.read_run(request.store, "child")
    assert standing is not None and standing.state == "failed" and "expired" in standing.reason


def test_no_permission_is_one_sentence_and_the_next_time_goes_on(
    base: str, root: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def refused(self: Path, missing_ok: bool = False) -> None:
        if "/policies/" in str(self):
            raise PermissionError(13, os.strerror(13), str(self))
        unlink(self, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refused)
        code, out, err = headrace(root, capsys, "gc")
    assert code == 1 and "permission denied" in err and err.count("\n") == 1, (out, err)
    assert "1 of 3 checkpoints have expired" in headrace(root, capsys, "audit", "verify", "small")[1]
    code, out, _ = headrace(root, capsys, "gc")
    assert code == 0 and "small: removed 1" in out
    assert not open_store(root).list(f"{base}/policies/00000001/x/")
