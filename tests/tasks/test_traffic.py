"""The estimate of what an hour of RL asks of a remote store."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_gcs import FakeGcs
from support.gated import ended

from flows.cli import parser
from flows.commands import validate
from models.config import DecoderConfig
from models.pure import flatten, init_params
from schemas import keys
from schemas.manifest import Window
from storage.folder import FolderStore
from storage.objects import Stored
from tasks.request import load
from tasks.run_watch import LOOK_READS, RunWatch
from tasks.traffic import Traffic, count_parameters, estimate, parameters, size

OPEN = Window(version=0, step=0, limit=9, low=0, ended=(), closed=False, learner="x")
DEPLOYED = "rollout.infrastructure=deployment"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGcs]:
    with FakeGcs("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


def at(project: Path, *overrides: str, parameters: int = 1_000_000, step_seconds: float = 10.0) -> Traffic:
    config = load(str(project / "small.toml"), overrides, root="memory://traffic").config
    return estimate(config, parameters, step_seconds=step_seconds)


def test_parameters_are_counted_as_the_model_has_them() -> None:
    shape = DecoderConfig(
        vocab_size=263, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=4, max_position_embeddings=64,
    )  # fmt: skip
    for tied in (True, False):
        config = DecoderConfig(**{**vars(shape), "tie_word_embeddings": tied})
        count = sum(leaf.size for leaf in flatten(init_params(config, seed=0)).values())
        assert count_parameters(config.to_hf()) == count


def test_what_drives_the_traffic(project: Path) -> None:
    base = at(project)
    assert at(project, "rollout.workers=8").reads > 2 * base.reads
    assert at(project, "rollout.heartbeat_seconds=20").writes < base.writes - 2 * 1500
    assert at(project, "rollout.heartbeat_seconds=0.1").writes <= base.writes + 2 * 1800 + 1, "one a second at most"
    assert at(project, "rl.publish_dtype=bfloat16").fetched < base.fetched
    assert at(project, parameters=2_000_000).sent > 1.5 * base.sent
    assert at(project, "rl.checkpoint_every=1").kept > 2 * base.kept
    assert at(project, step_seconds=1.0).sent == pytest.approx(10 * base.sent)


def test_workers_that_join_look_at_their_run(project: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, reads = ended(project, root), Counter[str]()
    store, get = case.session.store, FolderStore.get

    def counted(self: FolderStore, key: str) -> Stored:
        reads[key] += 1
        return get(self, key)

    monkeypatch.setattr(FolderStore, "get", counted)
    store.put(keys.window(case.weights.prefix.partition("/policies")[0]), OPEN.to_bytes())
    assert RunWatch(store, "small").look().phase == "open"
    assert reads.total() == LOOK_READS, reads
    here, elsewhere = at(project, "rollout.workers=8"), at(project, "rollout.workers=8", DEPLOYED)
    assert elsewhere.reads - here.reads == pytest.approx(8 * LOOK_READS * 1800 + 1800 + 9 * 720 + 9 * 720)
    assert elsewhere.writes == here.writes


def test_policies_are_most_of_the_bytes(project: Path) -> None:
    """360 steps an hour of 4 MB policies, a tenth of them with a snapshot of 12 MB, for two workers."""
    found = at(project)
    assert found.sent == pytest.approx(360 * 4e6 + 36 * 12e6, rel=0.1)
    assert found.fetched == pytest.approx(2 * 360 * 4e6, rel=0.1)
    assert found.kept == pytest.approx(36 * (4e6 + 12e6), rel=0.2)


def test_validate_says_it_for_a_bucket_only(
    project: Path, root: str, fake: FakeGcs, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(where: str) -> str:
        validate.main(parser().parse_args(["validate", str(project / "small.toml"), "--root", where]))
        return capsys.readouterr().out

    assert "class A" not in shown(root)
    assert "(class A)" in shown("gs://bucket/x") and not fake.bucket("bucket").objects
    request = load(str(project / "small.toml"), root="gs://bucket/x")
    assert parameters(request) == count_parameters(
        {"vocab_size": 263, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
         "num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": True}
    )  # fmt: skip


def test_data_files_may_lie_in_a_bucket(project: Path, root: str, fake: FakeGcs) -> None:
    from storage.open import open_store

    open_store("gs://bucket").create("sets/train.jsonl", (project / "train.jsonl").read_bytes())
    request = load(str(project / "small.toml"), ["rl.tasks=gs://bucket/sets/train.jsonl"], root=root)
    assert request.data["rl.tasks"].data == (project / "train.jsonl").read_bytes()
    for where, words in (("gs://bucket/none.jsonl", "does not exist"), ("gs://missing/x.jsonl", "no bucket missing")):
        with pytest.raises(Exception, match=words) as refused:
            load(str(project / "small.toml"), [f"rl.tasks={where}"], root=root)
        assert type(refused.value).__name__ == "RequestError"


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (999, "999 B"), (1234, "1.23 kB"), (5e9, "5 GB"), (2.5e15, "2,500 TB")]
)
def test_sizes(count: float, words: str) -> None:
    assert size(count) == words
