"""Export: the folder comes back bit for bit, its card tells the lineage, and nothing is left where it fails."""

import json
from pathlib import Path

import pytest
import yaml
from support.gated import ended, grade

from flows.cli import main
from models.config import DecoderConfig
from models.pure import init_params
from models.stored import load_weights, save_weights
from models.tokenizer import ByteTokenizer
from schemas import keys
from schemas.errors import HeadraceError
from schemas.manifest import CheckpointManifest, PolicyManifest, RLManifest, WeightsRef
from tasks import initial, promote
from tasks.export import export
from tasks.export_source import find_source
from tasks.gate import Case
from tasks.request import load


def with_weights(
    project: Path, root: str, *overrides: str, metrics: dict[str, float] | None = None
) -> tuple[Case, WeightsRef]:
    """A run whose last checkpoint has real weights, and that became champion."""
    case = ended(project, root, *overrides, metrics=metrics)
    store, config = case.session.store, case.session.request.config
    assert config.model.architecture is not None
    decoder = DecoderConfig.from_architecture(config.model.architecture, ByteTokenizer().vocab_size, 257)
    for key in store.list(f"{case.weights.prefix}/"):
        store.delete(key)
    origin = case.ref
    weights = save_weights(
        store, case.weights.prefix, decoder, init_params(decoder, 7), ByteTokenizer(), "bfloat16", origin
    )
    base = keys.rl(case.session.request.run, case.session.survey().rl.key)
    change(store, keys.policy_manifest(base, 3), PolicyManifest, weights=weights)
    change(store, keys.checkpoint_manifest(base, 3), CheckpointManifest, policy=weights)
    change(store, keys.rl_manifest(base), RLManifest, weights=weights)
    case = Case(case.session, case.ref, weights, case.start)
    grade(case, (1.0, 0.5))
    assert promote.promote(case, lambda c, f: None).promoted
    return case, weights


def change(store, key, kind, **changes) -> None:
    store.put(key, kind.from_bytes(store.get(key).data, key).model_copy(update=changes).to_bytes())


def test_what_leaves_comes_back_bit_for_bit(project: Path, root: str, tmp_path: Path) -> None:
    case, weights = with_weights(project, root)
    out = tmp_path / "out"
    assert main(["export", "small:production", "--root", root, "--out", str(out)]) == 0
    request = load(str(project / "small.toml"), ["warm_up=[]", f"model.path={out}"], root=root, run="child")
    back, parents = initial.resolve(request)
    assert back is not None and back.sha256 == weights.sha256 and parents[0].ref == str(out)
    store = case.session.store
    assert store.get(f"{back.prefix}/model.safetensors").data == store.get(f"{weights.prefix}/model.safetensors").data
    assert load_weights(store, back)[2].digest == load_weights(store, weights)[2].digest
    generation = json.loads((out / "generation_config.json").read_text())
    assert generation["do_sample"] and (generation["temperature"], generation["top_p"], generation["top_k"]) == (
        1,
        1,
        0,
    )
    assert generation["max_new_tokens"] == 64
    assert generation["eos_token_id"] == 257 and generation["pad_token_id"] == ByteTokenizer().special("<|pad|>")


def test_the_card_tells_the_lineage(project: Path, root: str, tmp_path: Path) -> None:
    case, weights = with_weights(project, root, metrics={"staleness": 1.5, "mismatch_kl": 0.01, "rows": 768.0})
    assert main(["export", "small@3", "--root", root, "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out/README.md").read_text()
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["library_name"] == "transformers" and "headrace" in front["tags"]
    (results,) = front["model-index"]
    assert results["name"] == "small@3" and results["results"][0]["metrics"][0]["value"] == 1.0
    start = case.start
    data = case.session.request.data
    for said in (
        weights.sha256, case.manifest.ledger_head, start.origin, start.sha256, data["rl.tasks"].sha256,
        data["rl.tasks"].key, "| small@3 | rl-", '"groups_per_batch": 8', "| promotion.tasks | 1 | 100.0% |",
        "small/production", "beats the warm-up", "headrace audit verify small",
        "Means over all trained rows: mismatch_kl 0.01, staleness 1.5.", "headrace audit checkpoint small@3",
    ):  # fmt: skip
        assert said in text, said
    assert "## Adapters" not in text


def test_the_card_tells_what_adapters_were_trained(project: Path, root: str, tmp_path: Path) -> None:
    lora = 'lora={rank=2, alpha=3.0, rank_stabilized=true, targets=["q_proj", "mlp.*"]}'
    case, _ = with_weights(project, root, lora)
    assert main(["export", "small@3", "--root", root, "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out/README.md").read_text()
    section = text.split("## Adapters\n")[1].split("\n## ")[0]
    for said in (
        "| rank | 2 |", "| alpha | 3 |", "| scale of B A | 2.12132, alpha / √rank |", "| targets | `q_proj`, `mlp.*` |",
        f"| base | {case.start.origin} |", f"| digest of the base | `{case.start.sha256}` |", "`adapter/`",
    ):  # fmt: skip
        assert said in section, said


def test_a_plain_name_is_a_run_before_it_is_a_model(project: Path, root: str, tmp_path: Path, capsys) -> None:
    case, weights = with_weights(project, root)
    assert main(["export", "small", "--root", root, "--out", str(tmp_path / "a"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checkpoint"] == "small@3" and found["weights_sha256"] == weights.sha256
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(found["files"])
    case.session.store.delete(keys.run_manifest("small"))
    assert main(["export", "small", "--root", root, "--out", str(tmp_path / "b")]) == 0


def test_what_can_t_be_exported_is_one_sentence_and_leaves_nothing(
    project: Path, root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case, weights = with_weights(project, root)
    store, full = case.session.store, tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("keep me")

    def refused(what: str, out: Path, code: int, says: str) -> None:
        assert main(["export", what, "--root", root, "--out", str(out)]) == code
        err = capsys.readouterr().err
        assert says in err and err.count("\n") == 1, err

    before = sorted(p.name for p in tmp_path.iterdir())
    refused("small", full, 2, "is there and is not empty")
    refused("small", tmp_path / "no/where", 2, "there is no folder")
    refused("small@9", tmp_path / "out", 2, "there is no checkpoint `small@9`")
    refused("nobody", tmp_path / "out", 2, "nothing was ever promoted to nobody/production")
    refused("small:staging", tmp_path / "out", 2, "its channels are small/")
    key = f"{weights.prefix}/model.safetensors"
    data = store.get(key).data
    store.put(key, data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
    refused("small", tmp_path / "out", 1, "was recorded: they were changed or damaged")
    for key in store.list(f"{weights.prefix}/"):
        store.delete(key)
    refused("small", tmp_path / "out", 2, "the weights of small@3 are no longer in")
    assert sorted(p.name for p in tmp_path.iterdir()) == before and (full / "mine.txt").read_text() == "keep me"


def test_an_empty_folder_is_filled(project: Path, root: str, tmp_path: Path) -> None:
    with_weights(project, root)
    (tmp_path / "out").mkdir()
    assert main(["export", "small", "--root", root, "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out/README.md").exists()


class Swept:
    """A store whose checkpoint expires before the `moment`-th call, as when `headrace gc` runs beside a reader."""

    def __init__(self, store, sweep, moment: int) -> None:
        self._store, self._sweep, self._left = store, sweep, moment

    def __getattr__(self, name: str):
        found = getattr(self._store, name)
        if name in ("get", "list", "head", "read"):
            if self._left == 0:
                self._sweep()
            self._left -= 1
        return found


def test_a_checkpoint_that_expires_while_it_is_exported_is_one_sentence(
    project: Path, root: str, tmp_path: Path
) -> None:
    case, weights = with_weights(project, root)
    store = case.session.store
    kept = {key: store.get(key).data for key in store.list(f"{weights.prefix}/")}

    def sweep() -> None:
        for key in kept:
            store.delete(key)

    said = set()
    for moment in range(200):
        swept = Swept(store, sweep, moment)
        out = tmp_path / str(moment)
        try:
            export(swept, find_source(swept, "small"), out)
        except HeadraceError as error:
            said.add(str(error))
            assert not out.exists() and list(tmp_path.glob(f".{moment}*")) == []
        for key, data in kept.items():
            store.put(key, data)
        if swept._left > 0:
            break
    else:
        pytest.fail("an export makes fewer calls")
    assert said == {f"the weights of small@3 are no longer in {root} ({weights.prefix} is empty)"}
