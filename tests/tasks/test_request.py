"""Every wrong request is refused with one sentence before anything is written."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import RequestError
from tasks.environment import check_environment
from tasks.initial import check_initial
from tasks.request import check_run_name, load, root_url


def request(project: Path, root: str, *overrides: str) -> None:
    check_initial(load(str(project / "small.toml"), overrides, root=root))


def test_a_good_request_writes_nothing(project: Path, root: str) -> None:
    request(project, root)
    assert not [p for p in Path(root).rglob("*") if p.is_file()]


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("rl.max_stalenes=1", "did you mean"),
        ("rl.max_staleness=-1", "max_staleness"),
        ("warm_up.0.data=missing.jsonl", "missing.jsonl does not exist"),
        ("warm_up.0.data={run='monday'}", "warm_up.habit.data names run `monday`, which is not in"),
        (
            "warm_up.0.data={run='monday', per_grup=2}",
            "unknown key `warm_up.0.data.per_grup`: did you mean `per_group`",
        ),
        ("warm_up.0.data=3", "`warm_up.0.data`: Input should be a valid string"),
        ("warm_up.0.kind=dpo", "reference policy missing"),
        ("warm_up.0.kind=orpo", "demos.jsonl line 1: a pair needs `prompt`"),
        ("rl.tasks=heldout.jsonl", "share the task id"),
        ("environment.reward=nowhere:reward", r"there is no file .*nowhere.py"),
        ("model.path=nowhere", "there is no weights folder"),
        ("model.path=other@3", "there is no run `other`"),
        ('environment.tools=["calculator", "calculator"]', "twice"),
        ("rl.processes=2", r"processes = 2 does not divide the devices of mesh \(data x fsdp x tensor = 1\)"),
        ("rl.tasks=s3://bucket/tasks.jsonl", "unknown kind"),
    ],
)
def test_wrong_settings(project: Path, root: str, override: str, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence) as error:
        request(project, root, override)
    assert "\n" not in str(error.value)


def test_a_mesh_that_does_not_divide_is_refused_before_any_work(project: Path, root: str) -> None:
    with pytest.raises(RequestError, match=r"^rl\.mesh: tensor = 7 does not divide the model's number of attention"):
        check_environment(load(str(project / "small.toml"), ("rl.mesh.tensor=7",), root=root))
    assert not [p for p in Path(root).rglob("*") if p.is_file()]


def test_a_demonstration_without_messages_is_named_by_its_line(project: Path, root: str) -> None:
    good = (project / "demos.jsonl").read_text()
    (project / "demos.jsonl").write_text(good + "{}\n")
    with pytest.raises(RequestError, match=r"demos.jsonl line 2"):
        request(project, root)


def test_a_pair_with_equal_sides_is_named_by_its_line(project: Path, root: str) -> None:
    said = [{"role": "assistant", "content": "2"}]
    pair = {"prompt": [{"role": "user", "content": "1+1"}], "chosen": said, "rejected": said}
    (project / "demos.jsonl").write_text(json.dumps(pair) + "\n")
    with pytest.raises(RequestError, match=r"demos.jsonl line 1: `chosen` and `rejected` are equal"):
        request(project, root, "warm_up.0.kind=orpo")


def test_a_champion_that_is_not_there_yet_is_no_reference(project: Path, root: str) -> None:
    pair = {"prompt": [{"role": "user", "content": "1+1"}]}
    pair |= {name: [{"role": "assistant", "content": name}] for name in ("chosen", "rejected")}
    (project / "demos.jsonl").write_text(json.dumps(pair) + "\n")
    with pytest.raises(RequestError, match="reference policy missing: small/production has no champion yet"):
        request(project, root, "model.path=champion", "warm_up.0.kind=dpo")


def test_sets_must_not_share_prompts(project: Path, root: str) -> None:
    rows = [{"id": "new", "prompt": "train 0?", "answer": "0"}]
    (project / "gate.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    with pytest.raises(RequestError, match="share the prompt `train 0"):
        request(project, root)


def test_a_root_that_cannot_be_written(project: Path) -> None:
    with pytest.raises(RequestError):
        request(project, str(project / "small.toml" / "below"))


def test_a_folder_without_weights(project: Path, root: str) -> None:
    (project / "weights").mkdir()
    with pytest.raises(RequestError, match=r"no config\.json"):
        request(project, root, "model.path=weights")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 101])
def test_bad_run_names(name: str) -> None:
    with pytest.raises(RequestError):
        check_run_name(name)


def test_the_root_is_the_given_one_then_the_environment_then_the_config(
    project: Path, root: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HEADRACE_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    config = load(str(project / "small.toml"), ["root=mine"], root=root).config
    chosen: Callable[[str | None], str] = lambda given: root_url(given, config, project)  # noqa: E731
    assert chosen(None) == str(project / "mine")
    assert root_url(None) == str(tmp_path / ".headrace")
    monkeypatch.setenv("HEADRACE_ROOT", "memory://x")
    assert chosen(None) == "memory://x"
    assert chosen("/given") == "/given"
