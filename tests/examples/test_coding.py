"""The coding recipe without a model: how its tasks are made, and a policy by hand that solves them in the sandbox."""

import ast
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from support.coding import EXAMPLE, SPLITS, module, tasks

from flows.cli import main
from models.chat import chat_format
from models.tokenizer import ByteTokenizer
from rollout.cast import load_cast
from rollout.collect import TrajectoryCollectEngine
from rollout.episode import Job
from rollout.orchestrator import RolloutOrchestrator
from rollout.scripted import ScriptedEngine
from schemas.trajectory import Trajectory
from tasks.request import read_config

sandboxed = pytest.mark.skipif(not shutil.which("prlimit"), reason="needs Linux with prlimit")
SOURCE = '''
def clamp(value, low=0, high=10):
    """Between 0 and 10."""
    if value < low:
        return low
    if not value <= high:
        return high
    return max(value, low + 1 - 1)
'''


def test_each_kind_of_bug_is_one_change_of_the_text() -> None:
    found = module("taskmaker.mutations").mutations(SOURCE)
    assert {m.kind for m in found} == {
        "off by one", "swapped comparison", "wrong operator", "missing return", "wrong default", "wrong variable",
        "dropped branch", "swapped arguments",
    }  # fmt: skip
    texts = [m.applied(SOURCE) for m in found]
    assert len(set(texts)) == len(texts) and all(ast.parse(text) for text in texts)
    assert '"""Between 0 and 10."""' in min(texts, key=len)
    lines = {
        kind: next(m for m in found if m.kind == kind).applied(SOURCE).splitlines() for kind in {m.kind for m in found}
    }
    assert "    max(value, low + 1 - 1)" in lines["missing return"] or "        low" in lines["missing return"]
    assert "    return max(low + 1 - 1, value)" in lines["swapped arguments"]


def test_hundreds_of_tasks_no_repository_in_two_files() -> None:
    rows = {split: tasks(split) for split in SPLITS}
    families = [family for split in SPLITS for family in {t.extra["family"] for t in rows[split]}]
    assert len(families) == len(set(families))
    everything = [task for split in SPLITS for task in rows[split]]
    assert len(everything) > 400
    assert len({t.prompt for t in everything}) == len({t.id for t in everything}) == len(everything)
    assert len(Counter(t.extra["bug"] for t in everything)) == len(module("taskmaker.mutations").KINDS)
    for (
        task
    ) in everything:  # some hidden case tells the bug from the mended repository and isn't among the visible tests
        shown = "".join(file["text"] for file in task.extra["files"])
        assert any(case["code"].splitlines()[-1] not in shown for case in task.extra["cases"])


def test_the_same_seed_makes_the_same_tasks() -> None:
    script = module("make_data")
    made = module("taskmaker.tasks").family_tasks(module("taskmaker.families").load("intervals"), script.SEED, 2)
    kept = [t for t in tasks(script.split_of("intervals")) if t.extra["family"] == "intervals"][:2]
    for row, task in zip(made, kept, strict=True):
        assert task.prompt.endswith(row["prompt"]) and task.answer == row["answer"]
        assert task.extra == {k: v for k, v in row.items() if k not in ("prompt", "answer")}


@sandboxed
async def test_a_policy_by_hand_solves_tasks_through_the_real_tools() -> None:
    config, folder = read_config(str(EXAMPLE / "scripted.toml"))
    cast, tokenizer = load_cast(config.environment, str(folder)), ByteTokenizer()
    engine = ScriptedEngine(
        module("scripted_policy").script, version=0, max_length=config.rollout.max_length, decode=tokenizer.decode
    )
    collector = TrajectoryCollectEngine(
        engine, chat_format(tokenizer, cast.tool_specs), cast, config, run="r", seed=1, worker="w", temperature=1.0
    )
    rows: list[Trajectory] = []
    orchestrator = RolloutOrchestrator(collector.collect, rows.append, max_concurrency=4, attempts=1)
    await orchestrator.run([Job(i, s, 0, tasks(split)[0]) for i, split in enumerate(SPLITS[:2]) for s in range(3)])
    assert [r.status for r in rows] == ["succeeded"] * 6
    solved = {r.reward for r in rows}
    assert solved == {0.0, 1.0}  # some seeds give up
    for row in rows:
        parts = dict(row.components)
        assert parts["success"] == row.reward == parts["visible"] and (row.reward == 1.0) == (parts["hidden"] == 1.0)
        facts = [m["facts"]["sandbox"] for m in json.loads(row.messages) if m.get("facts")]
        assert facts and all(f["backend"] and "truncated" in f for f in facts)


@sandboxed
def test_patches_are_proven_and_untouched_repositories_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(EXAMPLE / "scripted.toml"), "--root", str(tmp_path), "--tasks", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [f["gold"] for f in found["files"]] == [1] * len(found["files"])
