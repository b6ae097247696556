"""The command line itself: help in a moment, exit codes, one sentence each; lines and table of the progress."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from flows.cli import main
from flows.lines import Lines, line
from flows.live import LiveView

STEP = {
    "event": "step", "step": 2, "steps": 9, "version": 2, "reward": 0.25, "success": 0.125, "staleness_mean": 1.5,
    "staleness_max": 2, "trainer_idle_ratio": 0.5, "tokens_per_second": 1234.0,
}  # fmt: skip


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from flows.cli import main; main(['--help']); main(['run', '--help'])\n"
        "heavy = {'prefect', 'jax', 'pyarrow', 'pydantic', 'numpy', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in (
        "run",
        "validate",
        "rollout",
        "status",
        "quarantine",
        "work",
        "eval",
        "promote",
        "audit",
        "gc",
        "deploy",
        "serve",
    ):
        assert command in found.stdout


def test_recognising_a_finished_run_needs_neither_prefect_nor_jax() -> None:
    code = (
        "import sys, flows.commands.run, flows.commands.status, flows.commands.audit, flows.commands.work\n"
        "heavy = {'prefect', 'jax'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["status", "nothing"], "there is no run `nothing`"),
        (["work", "nothing"], "there is no run `nothing`"),
        (["work", "nothing", "--workers", "0"], "--workers 0: give at least 1"),
        (["eval", "nothing@3"], "there is no run `nothing`"),
        (["promote", "a@b"], "is not of the form RUN or RUN@STEP"),
        (["audit", "verify", "nothing"], "there is no run `nothing`"),
        (["gc", "nothing", "--dry-run"], "there is no run `nothing`"),
        (["run", "missing.toml"], "missing.toml can't be read"),
    ],
)
def test_wrong_requests_are_one_sentence_and_exit_code_2(
    argv: list[str], sentence: str, root: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*argv, "--root", root]) == 2
    err = capsys.readouterr().err
    assert err.startswith("headrace: ") and sentence in err and err.count("\n") == 1


def test_a_wrong_word_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runn"]) == 2
    capsys.readouterr()


def test_validate_says_what_it_checked(project: Path, root: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(project / "small.toml"), "--root", root]) == 0
    assert "is valid: run small" in capsys.readouterr().out
    assert main(["validate", str(project / "small.toml"), "--root", root, "--set", "environment.agent=Nobody"]) == 2


def test_a_step_in_words() -> None:
    text = line("learner", STEP)
    for part in (
        "step 2/9",
        "reward 0.250",
        "success 12.5%",
        "staleness 1.500 (max 2)",
        "idle 50.0%",
        "1,234 tokens/s",
    ):
        assert part in text


def test_an_evaluation_tells_no_success_before_it_has_any() -> None:
    told = {"event": "evaluation", "done": 0, "n": 40, "success": 0.0}
    assert line("warm-up", told) == "warm-up: 0/40 problems"
    assert line("warm-up", told | {"done": 8, "success": 0.5}) == "warm-up: 8/40 problems  success 50.0%"


def test_lines_come_at_most_once_a_second_and_the_last_always() -> None:
    now, out = [0.0], io.StringIO()
    lines = Lines(out, lambda: now[0])
    for step in range(1, 10):
        lines("learner", STEP | {"step": step})
        now[0] += 0.3
    assert [text.split()[2] for text in out.getvalue().splitlines()] == ["1/9", "5/9", "9/9"]


def test_the_table_shows_every_process() -> None:
    out = io.StringIO()
    view = LiveView("small", Console(file=out, width=120))
    view("learner", STEP)
    view("worker-0", {"event": "worker", "worker": "w", "trajectories": 7, "rollouter_idle_ratio": 0.25})
    view("learner", {"event": "log", "message": "a [red]message[/red]"})
    view._console.print(view.table())
    shown = out.getvalue()
    assert "2/9" in shown and "1.50 ≤ 2" in shown and "25%" in shown and "a [red]message[/red]" in shown


def test_a_run_needs_a_store_that_processes_share(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(project / "small.toml"), "--root", "memory://x"]) == 2
    assert "lives in one process" in capsys.readouterr().err
