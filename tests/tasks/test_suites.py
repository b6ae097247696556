"""Suites: named task sets that are kept, told apart from every other set, and played with the start and end of RL."""

import json
from pathlib import Path

import pytest

from schemas.errors import RequestError
from schemas.manifest import WeightsRef
from tasks import figures, record
from tasks.request import from_record, keep_data, load

SUITE = 'evaluation.suites=[{name="hard", tasks="hard.jsonl", temperature=0.5, samples=3}]'


def write(project: Path, name: str, ids: list[str]) -> None:
    rows = [{"id": i, "prompt": f"{i}?", "answer": "1"} for i in ids]
    (project / name).write_text("".join(json.dumps(r) + "\n" for r in rows))


def test_a_suite_is_kept_in_the_store_and_named_in_the_run(project: Path, root: str) -> None:
    write(project, "hard.jsonl", ["h1", "h2"])
    request = load(str(project / "small.toml"), [SUITE], root=root)
    keep_data(request)
    manifest = record.prepare(request)
    (project / "hard.jsonl").unlink()
    again = from_record(request.store, manifest)
    assert manifest.data["evaluation.suites.hard"] == request.data["evaluation.suites.hard"].key
    assert again.data["evaluation.suites.hard"].sha256 == request.data["evaluation.suites.hard"].sha256


def test_a_task_without_its_category_is_named(project: Path, root: str) -> None:
    with pytest.raises(RequestError, match=r"the task `heldout-0` of evaluation.tasks \(.*\) has no such field"):
        load(str(project / "small.toml"), ["evaluation.category=kind"], root=root)


def test_weights_are_measured_on_the_held_out_tasks_and_on_every_suite(project: Path, root: str) -> None:
    write(project, "hard.jsonl", ["h1", "h2"])
    request = load(str(project / "small.toml"), [SUITE, "evaluation.temperatures=[1.0, 0.0]"], root=root)
    weights = WeightsRef(prefix="p", sha256="aa")
    wanted = figures.figures(request, "candidate", "small@3", weights)
    assert [(e.setting, e.temperature, e.samples) for e in wanted] == [
        ("evaluation.tasks", 1.0, 1), ("evaluation.tasks", 0.0, 1), ("evaluation.suites.hard", 0.5, 3),
    ]  # fmt: skip
    assert len({e.key for e in wanted}) == 3


@pytest.mark.parametrize("shared", ["train-0", "heldout-0", "gate-0", "e1"])
def test_a_suite_shares_no_task_with_any_other_set(project: Path, root: str, shared: str) -> None:
    write(project, "hard.jsonl", ["h1", shared])
    write(project, "easy.jsonl", ["e1"])
    two = SUITE.replace("]", ', {name="easy", tasks="easy.jsonl"}]')
    with pytest.raises(RequestError, match=rf"evaluation\.suites\.hard \(hard.jsonl\).*share the task id `{shared}`"):
        load(str(project / "small.toml"), [two], root=root)
