"""A mesh changes where numbers lie, not what is learned. Devices are fake ones of a process of its own."""

import json

import pytest
from jax.sharding import AbstractMesh, PartitionSpec
from support.configuration import small
from support.meshes import learned
from support.parity import FOLDERS
from support.tiny import TINY

from models.config import DecoderConfig
from models.pure import shapes
from models.sharding import partition
from schemas.errors import RequestError
from trainer.mesh_fit import check_mesh

AXES = ("data", "fsdp", "tensor")
CUBE = (2, 2, 2)
LAYER = ".params['model']['layers']['0']"


def check(found, first):
    """Every mesh made the updates of the first, within rounding, and goes on from its predecessor's snapshot."""
    for number, mesh in enumerate(found):
        assert mesh["gap"] < 1e-5
        assert mesh["figures"].keys() == first["figures"].keys()
        for name, value in mesh["figures"].items():
            assert value == pytest.approx(first["figures"][name], rel=1e-4, abs=1e-5), name
        assert mesh["restored"] is (None if number == 0 else True)


def test_eight_devices_learn_what_one_does_and_go_on_from_its_snapshot():
    out = learned([(1, 1, 1), CUBE])
    alone, cube = out["meshes"]
    check(out["meshes"], alone)
    whole, parts = alone["held"], cube["held"]
    assert whole[f"{LAYER}['self_attn']['q_proj']['weight']"] == [24, 16]
    assert parts[f"{LAYER}['self_attn']['q_proj']['weight']"] == [12, 8]
    assert parts[f"{LAYER}['self_attn']['k_proj']['weight']"] == [6, 8]
    assert parts[f"{LAYER}['self_attn']['o_proj']['weight']"] == [8, 12]
    assert parts[f"{LAYER}['mlp']['down_proj']['weight']"] == [8, 12]
    assert parts[".params['model']['embed_tokens']['weight']"] == [19, 8]
    moments = {k: v for k, v in parts.items() if "gate_proj" in k and k.startswith(".optimizer")}
    assert list(moments.values()) == [[12, 8]] * 2
    assert out["rows"] == [2, 4]
    assert "asks for 16 devices (data 16 x fsdp 1 x tensor 1), but the learner's machine has 8" in out["refused"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "rl",
    [
        {},
        {"row_tokens": 16, "micro_batch": 4},
        {"micro_batch": 4, "remat": True},
        {"loss": {"algorithm": "ppo"}},
        {"loss": {"kl": "k3", "kl_coefficient": 0.1, "correction": "decoupled"}, "epochs": 2, "max_staleness": 3},
    ],
)
def test_every_mesh_learns_the_same(rl):
    meshes = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (1, 2, 2), (2, 1, 2), (4, 1, 2), CUBE]
    if rl.get("micro_batch"):
        meshes = [m for m in meshes if m[0] * m[1] <= 4]
    found = learned(meshes, **rl)["meshes"]
    assert len(found) == len(meshes)
    check(found, found[0])


def test_a_vocabulary_that_does_not_divide_stays_whole():
    mesh = AbstractMesh(CUBE, AXES)
    name = "model.embed_tokens.weight"
    assert partition(name, (38, 16), mesh) == PartitionSpec(("tensor",), ("fsdp",))
    assert partition(name, (37, 16), mesh) == PartitionSpec(None, ("fsdp",))
    assert partition(name, (38, 16), mesh, gathered=True) == PartitionSpec(("tensor",), None)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_matrix_and_bias_of_every_family_is_in_the_table(folder):
    mesh, config = AbstractMesh(CUBE, AXES), DecoderConfig.from_hf(json.loads((folder / "config.json").read_text()))
    for name, shape in shapes(config).items():
        if len(shape) > 1 or name.endswith(".bias"):
            assert any(partition(name, [8] * len(shape), mesh)), name


@pytest.mark.parametrize(
    ("mesh", "sentence"),
    [
        ({"fsdp": 3}, "fsdp = 3 does not divide the model's hidden size of 16"),
        ({"tensor": 3}, "tensor = 3 does not divide the model's number of attention heads, 4"),
        ({"tensor": 4}, "tensor = 4 does not divide the model's number of key-value heads, 2"),
        ({"data": 3}, "data x fsdp = 3 does not divide the rows of a forward pass of RL, 4"),
        ({"data": 4, "fsdp": 2}, "data x fsdp = 8 does not divide the rows of a forward pass of RL, 4"),
    ],
)
def test_a_mesh_that_does_not_divide_is_refused(mesh, sentence):
    with pytest.raises(RequestError, match=f"^rl.mesh: {sentence}: choose sizes that do$"):
        check_mesh(small(rl={"mesh": mesh}), TINY)


def test_a_mesh_that_divides_is_taken():
    check_mesh(small(rl={"mesh": {"data": 2, "fsdp": 2, "tensor": 2}}), TINY)
