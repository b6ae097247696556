"""Weights leave and come back bit for bit, and folders that are not right are refused in a sentence."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load, save
from support.tiny import TINY, lively

from models.config import DecoderConfig
from models.pure import flatten, init_params, nest
from models.weights import as_read, from_files, load_folder, params_digest, to_files
from schemas.errors import RequestError

PARAMS = lively(init_params(TINY, 0))
Q = "model.layers.1.self_attn.q_proj.weight"


def read(files: dict[str, bytes]) -> tuple[DecoderConfig, dict]:
    return from_files(files.__getitem__, list(files), "the/folder")


def with_tensors(tensors: dict[str, np.ndarray]) -> dict[str, bytes]:
    return to_files(TINY, PARAMS) | {"model.safetensors": save(tensors)}


def tensors() -> dict[str, np.ndarray]:
    return load(to_files(TINY, PARAMS)["model.safetensors"])


def test_export_then_import_is_bit_equal(config, params):
    files = to_files(config, params)
    again_config, again = read(files)
    assert again_config == config
    assert params_digest(again) == params_digest(params)
    assert to_files(config, again) == files


def test_bfloat16_export_rounds_once(config, params):
    files = to_files(config, params, "bfloat16")
    _, once = read(files)
    rounded = jax.tree.map(lambda x: np.asarray(x, ml_dtypes.bfloat16).astype(np.float32), params)
    assert params_digest(once) == params_digest(rounded)
    assert to_files(config, once, "bfloat16") == files
    assert json.loads(files["config.json"])["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_a_reader_gets_is_known_without_writing(config, params, dtype):
    assert params_digest(as_read(params, dtype)) == params_digest(read(to_files(config, params, dtype))[1])


def test_sharded_folders_are_read(tmp_path: Path):
    every = tensors()
    names = sorted(every)
    parts = {"a.safetensors": names[:3], "b.safetensors": names[3:]}
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    files = {file: save({name: every[name] for name in held}) for file, held in parts.items()}
    files |= {
        "config.json": to_files(TINY, PARAMS)["config.json"],
        "model.safetensors.index.json": json.dumps(index).encode(),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert params_digest(load_folder(tmp_path)[1]) == params_digest(PARAMS)
    del files["b.safetensors"]
    with pytest.raises(RequestError, match=r"lacks the file b\.safetensors"):
        read(files)


def test_the_digest_sees_names_dtypes_shapes_and_bytes():
    base = {"a": {"w": np.arange(4, dtype=np.float32)}, "b": np.zeros(2, np.float32)}
    same = {"b": jnp.zeros(2), "a": {"w": jnp.arange(4, dtype=jnp.float32)}}
    assert params_digest(base) == params_digest(same)
    big_endian = {**base, "b": np.zeros(2, ">f4"), "a": {"w": np.arange(4, dtype=">f4")}}
    assert params_digest(base) == params_digest(big_endian)
    others = [
        {**base, "b": np.zeros((2, 1), np.float32)},
        {**base, "b": np.zeros(2, np.int32)},
        {**base, "b": np.array([0, 1e-45], np.float32)},
        {"a": base["a"], "c": base["b"]},
    ]
    assert len({params_digest(tree) for tree in [base, *others]}) == 5


def test_a_missing_tensor_is_named():
    held = {name: value for name, value in tensors().items() if name != Q}
    with pytest.raises(RequestError, match=rf"the/folder/model\.safetensors lacks the tensor {Q}"):
        read(with_tensors(held))


def test_a_misshapen_tensor_is_named():
    with pytest.raises(RequestError, match=rf"the/folder/model\.safetensors: the tensor {Q} has the shape \[3, 3\]"):
        read(with_tensors({**tensors(), Q: np.zeros((3, 3), np.float32)}))


def test_a_tensor_of_an_unknown_dtype_is_named():
    with pytest.raises(RequestError, match=rf"the tensor {Q} is stored as I8"):
        read(with_tensors({**tensors(), Q: np.zeros((24, 16), np.int8)}))


def test_a_tensor_without_a_place_is_named():
    with pytest.raises(RequestError, match=r"holds the tensor model\.layers\.0\.self_attn\.q_proj\.bias"):
        read(with_tensors({**tensors(), "model.layers.0.self_attn.q_proj.bias": np.zeros(24, np.float32)}))


def test_tensors_that_can_be_derived_are_passed_over():
    extra = {
        "lm_head.weight": np.zeros((37, 16), np.float32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(3, np.float32),
    }
    assert params_digest(read(with_tensors({**tensors(), **extra}))[1]) == params_digest(PARAMS)


@pytest.mark.parametrize("keep", [0, 7, 100, -5])
def test_a_truncated_file_is_named(keep: int):
    files = to_files(TINY, PARAMS)
    files["model.safetensors"] = files["model.safetensors"][:keep]
    with pytest.raises(RequestError, match=r"the/folder/model\.safetensors is cut short or broken"):
        read(files)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(name: str):
    files = {key: value for key, value in to_files(TINY, PARAMS).items() if key != name}
    with pytest.raises(RequestError, match=f"the/folder has n.* {name}"):
        read(files)


def test_a_missing_folder_is_named(tmp_path: Path):
    with pytest.raises(RequestError, match="no weights folder"):
        load_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architecture MambaForCausalLM"),
        ({"hidden_size": None}, "hidden_size is None"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor"),
        ({"num_key_value_heads": 3}, "not a multiple"),
    ],
)
def test_a_config_that_we_could_not_compute_is_refused(change: dict, sentence: str):
    files = to_files(TINY, PARAMS)
    files["config.json"] = json.dumps(json.loads(files["config.json"]) | change).encode()
    with pytest.raises(RequestError, match=f"the/folder.*{sentence}"):
        read(files)


def test_broken_json_is_named():
    with pytest.raises(RequestError, match=r"the/folder/config\.json is not valid JSON"):
        read(to_files(TINY, PARAMS) | {"config.json": b"{"})


def test_newer_configs_keep_rope_settings_together():
    written = TINY.to_hf()
    del written["rope_theta"], written["rope_scaling"]
    written["rope_parameters"] = {"rope_type": "default", "rope_theta": 777.0}
    assert DecoderConfig.from_hf(written).rope_theta == 777.0


def test_older_configs_leave_out_what_follows_from_the_rest():
    written = TINY.to_hf() | {"hidden_size": 24}
    del written["head_dim"], written["num_key_value_heads"]
    config = DecoderConfig.from_hf(written)
    assert (config.head_dim, config.num_key_value_heads) == (6, 4)


def test_flat_and_nested_names_are_the_same_parameters():
    assert params_digest(nest(flatten(PARAMS))) == params_digest(PARAMS)
