"""`headrace promote`: the checks as a table and as JSON, refusals, and suites that a run plays for its gate."""

import json
from pathlib import Path

import pytest

from flows.cli import main
from storage.open import open_store
from tasks import registry

pytestmark = pytest.mark.usefixtures("prefect_server", "fakes")
SUITE = 'evaluation.suites=[{name="safe", tasks="safe.jsonl"}]'


def test_a_run_plays_the_suites_of_its_gate(
    project: Path, root: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": f"safe-{i}", "prompt": f"safe {i}?", "answer": str(i)} for i in range(20)]
    (project / "safe.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))

    def headrace(*argv: str) -> tuple[int, str, str]:
        code = main([*argv, "--root", root])
        out = capsys.readouterr()
        return code, out.out, out.err

    config = [str(project / "small.toml"), "--set", SUITE, "--set", 'promotion.no_regression=["safe"]']
    code, out, err = headrace("run", *config)
    assert code == 0 and "candidate on evaluation.suites.safe at T=1" in out and "  promoted: small@3" in out, err
    assert "nothing to do" in headrace("run", *config)[1]

    code, _, err = headrace("promote", "small", "--decline", "Ada", "--reason", "no")
    assert code == 2 and "asks nobody (promotion.approval = false)" in err

    monkeypatch.setenv("FAKE_CANDIDATE", "bad")
    code, out, err = headrace("run", *config, "--run", "worse", "--set", "promotion.max_staleness=0.5")
    assert code == 0 and "not promoted: worse@3 (0.0%) does not beat the champion small@3" in out, err
    code, out, err = headrace("promote", "worse")
    assert code == 1 and err.startswith("headrace: not promoted: worse@3") and err.count("\n") == 1
    states = {words[1]: words[0] for words in map(str.split, out.splitlines()) if words[0] in ("ok", "failed")}
    assert states == {"improvement": "failed", "no_regression/safe": "ok", "staleness": "failed", "audit": "ok"}
    code, out, err = headrace("promote", "worse", "--json")
    found = json.loads(out)
    assert code == 1 and not found["promoted"] and [c["ok"] for c in found["checks"]] == [False, True, False, True]
    assert headrace("promote", "worse@9")[0] == 2 and headrace("promote", "nobody")[0] == 2
    for channel in ("a/b", "", "-x", "candidate"):
        code, out, err = headrace("promote", "worse", f"--channel={channel}")
        assert code == 2 and err.startswith(f"headrace: --channel {channel}: ") and err.count("\n") == 1, err
    assert [e.ref for e in registry.read(open_store(root), "small", "production")[0].history] == ["small@3"]
    assert [e.ref for e in registry.read(open_store(root), "small", "candidate")[0].history] == ["small@3", "worse@3"]
