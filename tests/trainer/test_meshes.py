"""A mesh changes where numbers lie, not what is learned. Devices are fake ones of a process of its own."""

import json

import jax
import pytest
from jax.sharding import AbstractMesh, PartitionSpec
from support.configuration import small
from support.meshes import learned, told
from support.parity import FOLDERS
from support.tiny import TINY

from models.config import DecoderConfig
from models.pure import shapes
from models.sharding import partition, placement
from schemas.errors import RequestError
from schemas.mesh import Mesh
from trainer.mesh_fit import check_mesh

AXES = ("data", "fsdp", "tensor")
CUBE = (2, 2, 2)
ADAPTERS = {"rank": 2, "targets": ["*_proj"]}
LAYER = ".params['model']['layers']['0']"


def check(found, gap=1e-5, rel=1e-4):
    """Every mesh made the updates of the first, within rounding: `gap` of the state, `rel` of figures."""
    first = found[0]["figures"]
    for mesh in found:
        assert mesh["gap"] < gap
        assert mesh["figures"].keys() == first.keys()
        for name, value in mesh["figures"].items():
            assert value == pytest.approx(first[name], rel=rel, abs=rel / 10), name


def check_restored(found):
    """Every mesh goes on from its predecessor's snapshot."""
    assert [mesh["restored"] for mesh in found] == [None] + [True] * (len(found) - 1)


@pytest.mark.slow
def test_eight_devices_hold_their_parts_of_matrices_moments_and_rows():
    out = learned([(1, 1, 1), CUBE])
    alone, cube = out["meshes"]
    check(out["meshes"])
    check_restored(out["meshes"])
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


ALL_MESHES = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (1, 2, 2), (2, 1, 2), (4, 1, 2), CUBE]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rl", "lora"),
    [
        ({}, None),
        ({"row_tokens": 16, "micro_batch": 4}, None),
        ({"micro_batch": 4, "remat": True}, None),
        ({"loss": {"algorithm": "ppo"}}, None),
        (
            {
                "loss": {"kl": "k3", "kl_coefficient": 0.1, "correction": "decoupled"},
                "epochs": 2,
                "max_staleness": 3,
            },
            None,
        ),
        ({"loss": {"kl": "k3", "kl_coefficient": 0.1}}, ADAPTERS),
    ],
    ids=["plain", "packed", "remat", "critic", "k3", "lora"],
)
def test_every_mesh_learns_the_same(rl, lora):
    meshes = ALL_MESHES
    if rl.get("micro_batch"):
        meshes = [m for m in meshes if m[0] * m[1] <= 4]
    found = learned(meshes, lora, **rl)["meshes"]
    assert len(found) == len(meshes)
    check(found)
    check_restored(found)


@pytest.mark.slow
def test_adapters_are_cut_as_the_side_of_their_target():
    found = learned([(1, 1, 1), CUBE], ADAPTERS)["meshes"]
    check(found)
    check_restored(found)
    held = {name.split("']['", 2)[-1]: shape for name, shape in found[1]["held"].items() if ".params" in name[:8]}
    assert held["0']['self_attn']['q_proj']['lora_A']['weight']"] == [2, 8]
    assert held["0']['self_attn']['q_proj']['lora_B']['weight']"] == [12, 2]
    assert held["0']['mlp']['down_proj']['lora_A']['weight']"] == [2, 12]
    assert held["0']['mlp']['down_proj']['lora_B']['weight']"] == [8, 2]


@pytest.mark.slow
def test_passes_in_bfloat16_agree_as_far_as_they_are_rounded():
    found = learned([(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), CUBE], compute_dtype="bfloat16")["meshes"]
    check(found, gap=0.05, rel=0.02)  # on one device alone bfloat16 is 0.053 off float32
    check_restored(found)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, ADAPTERS], ids=["whole", "lora"])
@pytest.mark.parametrize(
    "settings",
    [{"kind": "sft"}, {"kind": "dpo"}, {"kind": "orpo"}],
    ids=lambda settings: settings["kind"],
)
def test_every_mesh_warms_up_the_same(settings, lora):
    found = told("support.mesh_warm_ups", *map(json.dumps, (ALL_MESHES, settings, lora)))
    assert len(found) == len(ALL_MESHES)
    check(found)


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


def test_a_mesh_with_more_devices_than_there_are_is_refused():
    wanted = 2 * len(jax.devices())
    with pytest.raises(RequestError, match=rf"for {wanted} devices \(data {wanted} x fsdp 1 x tensor 1\), but the"):
        placement(Mesh(data=wanted))


def test_a_mesh_that_divides_is_taken():
    check_mesh(small(rl={"mesh": {"data": 2, "fsdp": 2, "tensor": 2}}), TINY)
