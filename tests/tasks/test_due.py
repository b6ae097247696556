"""What is due of a run: it follows from the store, at any moment, on any machine."""

import json
from pathlib import Path

import pytest
from support.begun import EVERY, begun, commit
from support.expiring import expire
from support.gated import ended, report

from schemas import keys
from schemas.errors import RequestError
from storage.folder import FolderStore
from storage.objects import ObjectStore, Stored
from tasks.due import due
from tasks.figures import Evaluation
from tasks.gate import Case
from tasks.session import Session

SUITE = 'evaluation.suites=[{name="hard", tasks="hard.jsonl"}]'


@pytest.fixture
def training(project: Path, root: str) -> Session:
    """A run whose RL has made no step yet."""
    return begun(project, root, *EVERY)


def names(store: ObjectStore, run: str = "small") -> list[tuple[str, str, str]]:
    found = due(store, run)
    assert found is not None
    return [(e.name, e.checkpoint.partition("/")[0], e.setting) for e in found.wanted]


def make(session: Session, played: Evaluation) -> None:
    key = keys.evaluation_report(keys.evaluation(session.request.run, played.key))
    session.store.create(key, report(session, played, 0.5).to_bytes())


def test_every_kth_checkpoint_is_due_and_none_between(training: Session) -> None:
    start = ("warm-up", "stages", "evaluation.tasks")
    assert names(training.store) == [start]
    commit(training, 2, 4, 6, 7, 8)
    found = [start, *((f"step {s}", f"small@{s}", "evaluation.tasks") for s in (4, 8))]
    assert names(training.store) == found


def test_what_is_made_is_due_no_more(training: Session) -> None:
    commit(training, 4, 8)
    found = due(training.store, "small")
    assert found is not None and len(found.wanted) == 3
    make(training, found.wanted[1])
    assert [n for n, *_ in names(training.store)] == ["warm-up", "step 8"]
    for played in (found.wanted[0], found.wanted[2]):
        make(training, played)
    assert names(training.store) == []


def test_every_temperature_and_suite_is_due(project: Path, root: str) -> None:
    rows = [{"id": f"h{i}", "prompt": f"h{i}?", "answer": "1"} for i in range(2)]
    (project / "hard.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    session = begun(project, root, *EVERY, SUITE, "evaluation.temperatures=[1.0, 0.0]")
    commit(session, 4)
    found = due(session.store, "small")
    assert found is not None
    assert [(e.setting, e.temperature) for e in found.wanted if e.name == "step 4"] == [
        ("evaluation.tasks", 1.0), ("evaluation.tasks", 0.0), ("evaluation.suites.hard", 1.0),
    ]  # fmt: skip


def test_with_every_0_nothing_is_due_before_the_end(project: Path, root: str) -> None:
    session = begun(project, root, "rl.checkpoint_every=1")
    commit(session, 1, 2)
    assert names(session.store) == []
    case: Case = ended(project, root)
    assert [n for n, *_ in names(case.session.store)] == ["warm-up", "candidate"]


def test_the_end_is_due_once_even_if_its_step_is_a_multiple(project: Path, root: str) -> None:
    case = ended(project, root, "rl.checkpoint_every=1", "evaluation.every=1")
    assert [n for n, *_ in names(case.session.store)] == ["warm-up", "candidate"]


def test_a_checkpoint_that_expired_is_said_and_its_report_stays(training: Session) -> None:
    base = commit(training, 4, 8)
    found = due(training.store, "small")
    assert found is not None and not found.expired
    make(training, found.wanted[1])
    expire(training.store, base, 4)
    expire(training.store, base, 8)
    later = due(training.store, "small")
    assert later is not None and [e.name for e in later.wanted] == ["warm-up"]
    assert len(later.expired) == 1 and later.expired[0].startswith("small@8's snapshot and weights expired on 2026-09")
    assert [e.name for e in training.survey().evaluations if e.report] == ["step 4"]


def test_the_answer_needs_no_module_and_no_file_of_the_user(training: Session, project: Path) -> None:
    commit(training, 4)
    before = names(training.store)
    for file in project.iterdir():
        file.unlink()
    project.rmdir()
    assert names(training.store) == before


def test_what_the_files_ask_is_not_read_to_answer(training: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at every run of a store plays few of them."""
    commit(training, 4)
    read, get = list[str](), FolderStore.get

    def noted(self: FolderStore, key: str) -> Stored:
        read.append(key)
        return get(self, key)

    monkeypatch.setattr(FolderStore, "get", noted)
    found = due(training.store, "small")
    assert found is not None and not [k for k in read if k.startswith("fingerprints/")]
    assert found.request.sets["evaluation.tasks"].digests.size
    assert [k for k in read if k.startswith("fingerprints/")], "it is read when it is wanted"


def test_a_run_that_does_not_exist_is_named(training: Session) -> None:
    with pytest.raises(RequestError, match="there is no run `other`"):
        due(training.store, "other")
