"""`headrace eval` with stand-ins for the playing: runs that train, suites, whatever is due, and wrong input."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.begun import EVERY, begun, commit
from support.expiring import expire

from flows.cli import main
from schemas import keys
from tasks.lease import hold
from tasks.session import Session

pytestmark = pytest.mark.usefixtures("fakes")
SUITES = 'evaluation.suites=[{name="hard", tasks="hard.jsonl"}, {name="easy", tasks="easy.jsonl"}]'
Eval = Callable[..., tuple[int, str, str]]


@pytest.fixture
def training(project: Path, root: str) -> Session:
    for name in ("hard", "easy"):
        rows = [{"id": f"{name}{i}", "prompt": f"{name} {i}?", "answer": "1"} for i in range(4)]
        (project / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    session = begun(project, root, *EVERY, SUITES)
    commit(session, 2, 4)
    return session


@pytest.fixture
def evaluate(training: Session, root: str, capsys: pytest.CaptureFixture[str]) -> Eval:
    """The command; returns exit code, standard output, standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["eval", *words, "--root", root])
        found = capsys.readouterr()
        return code, found.out, found.err

    return run


def test_a_run_that_somebody_drives_is_evaluated(evaluate: Eval, training: Session) -> None:
    with hold(training.store, keys.run_lease("small"), "run small"):
        code, out, err = evaluate("small@2", "--suite", "hard")
    assert code == 0 and not err
    assert out.splitlines()[-1] == "small@2 on hard T=1: success 100.0% [90.0%, 100.0%] on 4 episodes"
    assert out.count("success 100.0% [") == 1, "only the suite"
    code, out, _ = evaluate("small", "--json", "--suite", "easy", "--suite", "hard", "--suite", "easy")
    reports = json.loads(out)["reports"]
    assert code == 0
    assert [(r["checkpoint"], r["setting"], r["name"]) for r in reports] == [
        ("small@4", "evaluation.suites.easy", "step 4"), ("small@4", "evaluation.suites.hard", "step 4"),
    ]  # fmt: skip


def test_whatever_is_due_is_made_once(evaluate: Eval) -> None:
    code, out, _ = evaluate("small", "--due")
    assert code == 0 and out.splitlines()[-1] == "6 made"
    assert [out.count(f"small@4{suite} T=1: success") for suite in ("", " on hard", " on easy")] == [1, 1, 1]
    assert "small@2" not in out
    assert evaluate("--due")[:2] == (0, "nothing is due\n")
    out = evaluate("--due", "--json")[1]
    assert json.loads(out) == {"reports": [], "elsewhere": [], "expired": []}


def test_a_due_checkpoint_that_expired_is_said(evaluate: Eval, training: Session) -> None:
    expire(training.store, commit(training), 4)
    code, out, _ = evaluate("small", "--due")
    assert code == 0 and "small@4's snapshot and weights expired on" in out and out.splitlines()[-1] == "3 made"


def test_one_that_fails_is_exit_code_1(evaluate: Eval, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_EVALUATION_FAILS", "small@4")
    code, out, err = evaluate("small", "--due")
    assert (code, err) == (1, "headrace: no episode of small@4 ends (and 2 more failed)\n")
    assert out.splitlines()[-1] == "3 made, 3 failed"
    code, _, err = evaluate("small@4", "--suite", "hard")
    assert (code, err) == (1, "headrace: no episode of small@4 ends\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("other",), "there is no run `other`"),
        (("other", "--due"), "there is no run `other`"),
        (("small@3",), "there is no checkpoint `small@3`: steps with one are 2, 4"),
        (("small@x",), "`small@x` is not of the form RUN or RUN@STEP"),
        (("small", "--suite", "odd"), "run small has no suite `odd` in evaluation.suites: it has hard, easy"),
        (("small", "--suite", "hard", "--due"), "--due plays whatever is due, suites included: leave out --suite"),
        (("small@4", "--due"), "--due looks at whole runs: give small, or leave out --due"),
        ((), "name a checkpoint as RUN or RUN@STEP, or give --due"),
    ],
)
def test_wrong_requests_are_one_sentence_and_exit_code_2(evaluate: Eval, words: tuple[str, ...], said: str) -> None:
    code, out, err = evaluate(*words)
    assert code == 2 and not out
    assert err.startswith(f"headrace: {said}") and err.count("\n") == 1


def test_an_expired_checkpoint_is_refused(evaluate: Eval, training: Session) -> None:
    expire(training.store, commit(training), 4)
    code, _, err = evaluate("small@4")
    assert code == 2 and err.startswith("headrace: small@4's snapshot and weights expired on") and err.count("\n") == 1
