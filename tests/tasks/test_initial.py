"""Where a run may start: a weights folder, a checkpoint, the champion; and what is refused."""

from pathlib import Path

import pytest
from safetensors.numpy import load, save
from support.gated import crown, ended

from models.config import DecoderConfig
from models.pure import init_params
from models.tokenizer import ByteTokenizer
from models.weights import to_files
from schemas import keys
from schemas.errors import RequestError
from tasks.ancestors import trained_on
from tasks.initial import check_initial, resolve
from tasks.request import Request
from tasks.request import load as load_request

SHAPE = DecoderConfig(
    vocab_size=263, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, head_dim=4, max_position_embeddings=32,
)  # fmt: skip


@pytest.fixture
def request_from_folder(project: Path, root: str) -> Request:
    """A request that starts from a folder `weights` beside the configuration."""
    (project / "weights").mkdir()
    files = to_files(SHAPE, init_params(SHAPE, 0)) | ByteTokenizer().to_files()
    for name, data in files.items():
        (project / "weights" / name).write_bytes(data)
    return load_request(str(project / "small.toml"), ["model.path=weights"], root=root)


def test_a_folder_is_copied_into_the_store_once(request_from_folder: Request) -> None:
    check_initial(request_from_folder)
    assert not request_from_folder.store.list("weights/")
    first, parents = resolve(request_from_folder)
    assert first is not None and first.origin == "weights" and parents[0].sha256 == first.sha256
    kept = request_from_folder.store.list("weights/")
    assert any(k.endswith("model.safetensors") for k in kept)
    assert resolve(request_from_folder)[0] == first and request_from_folder.store.list("weights/") == kept


def test_a_missing_tensor_is_named(request_from_folder: Request) -> None:
    file = request_from_folder.folder / "weights" / "model.safetensors"
    tensors = load(file.read_bytes())
    del tensors["model.norm.weight"]
    file.write_bytes(save(tensors))
    with pytest.raises(RequestError, match=r"model\.norm\.weight"):
        check_initial(request_from_folder)


def test_other_weights_are_other_inputs(request_from_folder: Request) -> None:
    before = resolve(request_from_folder)[0]
    files = to_files(SHAPE, init_params(SHAPE, 1))
    (request_from_folder.folder / "weights" / "model.safetensors").write_bytes(files["model.safetensors"])
    after = resolve(request_from_folder)[0]
    assert before is not None and after is not None and before.sha256 != after.sha256


def test_from_scratch_while_there_is_no_champion(project: Path, root: str) -> None:
    request = load_request(str(project / "small.toml"), ["model.path=champion"], root=root)
    check_initial(request)
    assert resolve(request) == (None, ())


def test_the_champion_is_that_of_the_configured_channel(project: Path, root: str) -> None:
    staging = ["model.path=champion", "promotion.channel=staging"]
    request = load_request(str(project / "small.toml"), staging, root=root)
    crown(root, "production@1")
    assert resolve(request) == (None, ())
    weights = crown(root, "staging@1", channel="staging")
    found, parents = resolve(request)
    assert found == weights and [(p.kind, p.ref) for p in parents] == [("champion", "staging@1")]
    check_initial(request)
    request.store.delete(f"{weights.prefix}/config.json")
    with pytest.raises(RequestError, match="the weights of the champion staging@1 are no longer in"):
        check_initial(request)


def test_weights_that_this_store_made_keep_their_lineage(request_from_folder: Request, project: Path) -> None:
    """Such as an export that is given back as `model.path`."""
    store, digest = request_from_folder.store, check_initial(request_from_folder)
    assert digest is not None and digest.origin == "weights"
    case = ended(project, store.url, run="monday")
    key = keys.checkpoint_manifest(case.weights.prefix.partition("/policies")[0], 3)
    store.put(key, store.get(key).data.replace(case.weights.sha256.encode(), digest.sha256.encode()))
    found = check_initial(request_from_folder)
    assert found is not None and (found.prefix, found.origin) == ("", "monday@3")
    made, parents = resolve(request_from_folder)
    assert made is not None and made.origin == "monday@3" and made.prefix.startswith("weights/")
    assert [(p.kind, p.ref) for p in parents] == [("weights", "weights")]
    (trained,) = trained_on(store, made)
    assert trained.words == "the training tasks of run monday"
