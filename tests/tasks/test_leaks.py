"""What is measured was never trained on: not by the run, not by its warm-ups, not by any ancestor."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.gated import crown, ended

from flows.cli import main
from schemas import keys
from schemas.errors import RequestError
from schemas.manifest import StageManifest, WeightsRef
from storage.memory import MemoryStore
from storage.open import open_store
from tasks import fingerprints, record
from tasks.ancestors import trained_on
from tasks.checkpoints import find
from tasks.evaluate import evaluate
from tasks.figures import figures
from tasks.request import load
from tasks.session import opened
from tasks.sources import DataFile, keep
from tasks.start import check_start

SUITE = 'evaluation.suites=[{name = "extra", tasks = "extra.jsonl"}]'
"""A further set, for `--set`."""


def write(project: Path, file: str, *rows: dict) -> None:
    (project / file).write_text("".join(json.dumps(row) + "\n" for row in rows))


def task(name: str, prompt: str) -> dict:
    return {"id": name, "prompt": prompt, "answer": "0"}


def demonstration(prompt: str) -> dict:
    said = [{"role": "system", "content": "Add."}, {"role": "user", "content": prompt}]
    return {"messages": [*said, {"role": "assistant", "content": "2"}]}


def refused(project: Path, root: str, *overrides: str, run: str | None = None) -> str:
    """The sentence with which a run is refused before anything is written of it."""
    with pytest.raises(RequestError) as error:
        check_start(load(str(project / "small.toml"), overrides, root=root, run=run))
    assert "\n" not in str(error.value)
    return str(error.value)


def accepted(project: Path, root: str, *overrides: str, run: str | None = None) -> None:
    check_start(load(str(project / "small.toml"), overrides, root=root, run=run))


@pytest.mark.parametrize(
    ("first", "file", "second"),
    [
        ("rl.tasks (train.jsonl)", "heldout.jsonl", "evaluation.tasks (heldout.jsonl)"),
        ("rl.tasks (train.jsonl)", "gate.jsonl", "promotion.tasks (gate.jsonl)"),
        ("rl.tasks (train.jsonl)", "extra.jsonl", "evaluation.suites.extra (extra.jsonl)"),
        ("warm_up.habit (demos.jsonl)", "heldout.jsonl", "evaluation.tasks (heldout.jsonl)"),
        ("warm_up.habit (demos.jsonl)", "gate.jsonl", "promotion.tasks (gate.jsonl)"),
        ("warm_up.habit (demos.jsonl)", "extra.jsonl", "evaluation.suites.extra (extra.jsonl)"),
    ],
)
def test_a_copied_prompt_is_found_whatever_its_white_space_and_case(
    project: Path, root: str, first: str, file: str, second: str
) -> None:
    write(project, "extra.jsonl", task("extra-0", "extra"))
    write(project, "train.jsonl", task("train-0", "What is  1 + 1?"))
    write(project, "demos.jsonl", demonstration("another"), demonstration("What is  1 + 1?"))
    accepted(project, root, SUITE)
    write(project, file, task("fresh", "fresh"), task("copy", " what is 1 + 1?\n"))
    if first.startswith("warm_up"):
        write(project, "train.jsonl", task("train-0", "training"))
    said = refused(project, root, SUITE)
    assert first in said and second in said and "`what is 1 + 1?`" in said and "task copy" in said
    assert ("demos.jsonl line 2" in said) == first.startswith("warm_up")


def test_what_decides_is_not_reported(project: Path, root: str) -> None:
    write(project, "extra.jsonl", task("extra-0", "GATE 3?"))
    said = refused(project, root, SUITE, 'promotion.no_regression=["extra"]')
    assert "promotion.tasks (gate.jsonl) and evaluation.suites.extra (extra.jsonl) share" in said


def test_demonstrations_may_show_training_tasks(project: Path, root: str) -> None:
    write(project, "demos.jsonl", demonstration("train 0?"), demonstration("train 0?"))
    accepted(project, root)


def test_a_demonstration_that_nobody_asked_for_asks_nothing(project: Path, root: str) -> None:
    write(project, "demos.jsonl", {"messages": [{"role": "assistant", "content": "heldout 0?"}]})
    accepted(project, root)


def test_ids_are_told_apart_by_case(project: Path, root: str) -> None:
    write(project, "train.jsonl", task("HELDOUT-0", "training"))
    accepted(project, root)


@pytest.fixture
def monday(project: Path, root: str) -> WeightsRef:
    """A run that has ended, trained on `old.jsonl`; the configuration has other training tasks now."""
    write(project, "old.jsonl", task("old-0", "old 0?"), task("old-1", "old 1?"))
    return ended(project, root, "rl.tasks=old.jsonl", run="monday").weights


@pytest.mark.parametrize(
    ("setting", "overrides"),
    [
        ("evaluation.tasks", ["evaluation.tasks=new.jsonl"]),
        ("promotion.tasks", ["promotion.tasks=new.jsonl"]),
        ("evaluation.suites.extra", [SUITE.replace("extra.jsonl", "new.jsonl")]),
    ],
)
def test_a_run_is_not_measured_on_what_its_start_was_trained_on(
    project: Path, root: str, monday: WeightsRef, setting: str, overrides: list[str]
) -> None:
    start = ["model.path=monday@3", "warm_up=[]"]
    write(project, "new.jsonl", task("new-0", "new 0?"))
    accepted(project, root, *start, *overrides, run="tuesday")
    write(project, "new.jsonl", task("new-0", "new 0?"), task("new-1", "Old 1?"))
    said = refused(project, root, *start, *overrides, run="tuesday")
    key = load(str(project / "small.toml"), ["rl.tasks=old.jsonl"], root=root).data["rl.tasks"].key
    assert f"{setting} (new.jsonl) and the training tasks of run monday ({key}) share the prompt `old 1?`" in said
    assert "monday@3, which run tuesday starts from" in said and "(task new-1, task old-1)" in said


def test_an_id_of_an_ancestor_is_found_too(project: Path, root: str, monday: WeightsRef) -> None:
    write(project, "new.jsonl", task("old-0", "reworded"))
    said = refused(project, root, "model.path=monday@3", "evaluation.tasks=new.jsonl", run="tuesday")
    assert "share the task id `old-0`" in said


def test_a_champion_is_an_ancestor_and_so_is_what_it_started_from(project: Path, root: str, monday: WeightsRef) -> None:
    case = ended(project, root, "model.path=monday@3", run="tuesday")
    store, channel = open_store(root), keys.channel("small", "production")
    crown(root, "tuesday@3")
    entry = store.get(channel).data.replace(b"weights/tuesday@3", case.weights.prefix.encode())
    store.put(channel, entry.replace(b"digest-of-tuesday@3", case.weights.sha256.encode()))
    write(project, "new.jsonl", task("new", "OLD 0?"))
    said = refused(project, root, "model.path=champion", "evaluation.tasks=new.jsonl", run="wednesday")
    assert "the training tasks of run monday" in said and "tuesday@3, which run wednesday starts from" in said
    # a run of other origin is only compared with the champion, on the gate's tasks
    accepted(project, root, "evaluation.tasks=new.jsonl", run="wednesday")
    said = refused(project, root, "promotion.tasks=new.jsonl", run="wednesday")
    assert "tuesday@3, the champion that the gate compares with" in said


def test_a_run_that_goes_on_is_not_asked_about_a_later_champion(project: Path, root: str, monday: WeightsRef) -> None:
    ended(project, root, "rl.tasks=train.jsonl", run="tuesday")
    write(project, "old.jsonl", task("gate-0", "gate 0?"))
    write(project, "other.jsonl", task("other", "other"))
    later = ended(project, root, "rl.tasks=old.jsonl", "promotion.tasks=other.jsonl", run="wednesday")
    store, channel = open_store(root), keys.channel("small", "production")
    crown(root, "wednesday@3")
    store.put(channel, store.get(channel).data.replace(b"weights/wednesday@3", later.weights.prefix.encode()))
    accepted(project, root, "warm_up=[]", run="tuesday")
    assert "wednesday@3, the champion" in refused(project, root, "warm_up=[]", run="thursday")


def test_demonstrations_of_an_ancestor_count(project: Path, root: str) -> None:
    store = open_store(root)
    file = DataFile("demos.jsonl", (json.dumps(demonstration("heldout 3?")) + "\n").encode(), "jsonl", "d" * 64)
    keep(store, file)
    parents = [{"kind": "data", "ref": file.key, "sha256": file.sha256}, {"kind": "code", "ref": "x"}]
    weights = WeightsRef(prefix="stages/habit-0/weights/0", sha256="w", origin="stages/habit-0")
    manifest = StageManifest.model_validate(
        {"stage": "habit", "key": "0", "config": {}, "inputs": parents, "weights": weights, "code": "0",
         "started": 0, "ended": 1}
    )  # fmt: skip
    store.put("stages/habit-0/manifest.json", manifest.to_bytes())
    later = StageManifest.model_validate(
        manifest.model_dump() | {"key": "1", "inputs": [{"kind": "stage", "ref": "stages/habit-0", "sha256": "w"}]}
    )
    store.put("stages/habit-1/manifest.json", later.to_bytes())
    found = trained_on(store, WeightsRef(prefix="stages/habit-1/weights/0", sha256="x", origin="stages/habit-1"))
    assert [(t.key, t.kind, t.words) for t in found] == [(file.key, "warm_up", "the demonstrations of stages/habit-0")]


def test_weights_from_outside_have_no_known_ancestors() -> None:
    assert trained_on(MemoryStore(), WeightsRef(prefix="weights/a/files", sha256="a", origin="gone@3")) == []


def test_the_digests_stand_in_for_a_data_file_that_is_not_needed(project: Path, root: str, monday: WeightsRef) -> None:
    store, start = open_store(root), ["model.path=monday@3", "warm_up=[]"]
    (old,) = trained_on(store, monday)
    kept = store.get(keys.fingerprints(old.sha256, "tasks")).data
    store.delete(old.key)
    accepted(project, root, *start, run="tuesday")
    store.put(keys.fingerprints(old.sha256, "tasks"), kept[:-9] + b"\0" + kept[-8:])
    said = refused(project, root, *start, run="tuesday")
    assert f"{old.key} is no longer in" in said and "put the file back" in said
    shutil.copy(project / "old.jsonl", Path(root) / old.key)
    accepted(project, root, *start, run="tuesday")
    write(project, "heldout.jsonl", task("copy", "old 0?"))
    assert "share the prompt `old 0?`" in refused(project, root, *start, run="tuesday")


def test_digests_that_meet_by_chance_are_no_shared_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def data_set(*prompts: str) -> fingerprints.DataSet:
        rows = [("prompt", p, p) for p in prompts]
        return fingerprints.DataSet("x", lambda: fingerprints.digests(rows), lambda: rows)

    monkeypatch.setattr(fingerprints, "_digest", lambda what, text: len(text))
    assert fingerprints.shared(data_set("a", "bb"), data_set("cc")) == ""
    assert "`bb` (bb, bb)" in fingerprints.shared(data_set("a", "bb"), data_set("bb", "cc"))


def test_stored_digests_are_read_back_and_follow_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    file = DataFile("t.jsonl", (json.dumps(task("a", "A  b")) + "\n").encode(), "jsonl", "f" * 64)
    keep(store, file)
    made = fingerprints.digests(fingerprints.asked(file, "tasks"))
    fingerprints.keep(store, file, "tasks", made)
    first = store.get(keys.fingerprints(file.sha256, "tasks"))
    found = fingerprints.of_stored(store, file.key, file.sha256, "tasks", "t")
    assert found.digests.dtype == np.uint64 and found.digests.tolist() == made.tolist() == sorted(made.tolist())
    assert list(found.rows()) == [("id", "a", "task a"), ("prompt", "a b", "task a")]
    fingerprints.keep(store, file, "tasks", made)
    assert store.get(keys.fingerprints(file.sha256, "tasks")) == first
    monkeypatch.setattr(fingerprints, "RULE", b"2")
    fingerprints.keep(store, file, "tasks", made)
    assert store.get(keys.fingerprints(file.sha256, "tasks")).generation != first.generation


def test_an_old_checkpoint_is_not_measured_on_what_trained_it(project: Path, root: str) -> None:
    """The run has other settings by now: its training tasks of before are what it is measured on."""
    ended(project, root, run="small")
    ended(project, root, "rl.tasks=heldout.jsonl", "evaluation.tasks=train.jsonl", run="small")
    store = open_store(root)
    checkpoint = find(store, "small@3")
    first = record.read_run(store, "small")
    assert first is not None and len(first.rl_keys) == 2
    policy = WeightsRef(
        prefix=keys.policy_weights(keys.rl("small", first.rl_keys[0]), 3, "x"), sha256="old", origin="small@3"
    )
    with opened(checkpoint.request, checkpoint.record, lambda source, event: None, aside=True) as here:
        assert evaluate(here, figures(checkpoint.request, "candidate", "small@3", policy)[0]) is None
    assert isinstance(here.cause, RequestError)
    said = str(here.cause)
    assert "evaluation.tasks" in said and "the training tasks of run small" in said and "`train-0`" in said


def test_the_gate_measures_nobody_on_their_training_tasks(project: Path, root: str, monday: WeightsRef) -> None:
    """The champion came after the run had started."""
    write(project, "new.jsonl", task("new", "old 0?"))
    case = ended(project, root, "promotion.tasks=new.jsonl", run="tuesday")
    store, channel = open_store(root), keys.channel("small", "production")
    crown(root, "monday@3")
    entry = store.get(channel).data.replace(b"weights/monday@3", monday.prefix.encode())
    store.put(channel, entry.replace(b"digest-of-monday@3", monday.sha256.encode()))
    store.put(f"{case.weights.prefix}/config.json", b"{}")
    assert main(["promote", "tuesday", "--root", root]) == 2


def test_validate_and_run_refuse_with_exit_code_2(
    project: Path, root: str, monday: WeightsRef, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project, "new.jsonl", task("new", "old 0?"))
    before = open_store(root).list("")
    for command in ("validate", "run"):
        given = [command, str(project / "small.toml"), "--root", root, "--set", "model.path=monday@3"]
        assert main([*given, "--set", "name=tuesday", "--set", "evaluation.tasks=new.jsonl"]) == 2
        assert "share the prompt `old 0?`" in capsys.readouterr().err
    assert open_store(root).list("") == before
