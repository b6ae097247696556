"""Every family computes what transformers computes, and each switch of a family is needed for that.

The checkpoints and reference logits in `families/` are made by `families/make.py`.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save
from support import parity

from models.config import DecoderConfig
from models.families import FAMILIES
from models.pure import flatten, init_params, nest
from models.weights import from_files, load_folder, params_digest, to_files
from schemas.errors import RequestError

TOLERANCE = 1e-4
folders = pytest.mark.parametrize("folder", parity.FOLDERS, ids=lambda folder: folder.name)
NAMES = {folder.name: folder for folder in parity.FOLDERS}


def described(name: str) -> dict[str, Any]:
    return json.loads((NAMES[name] / "config.json").read_text())


@folders
def test_log_probs_equal_those_of_transformers(folder: Path):
    found = parity.read(folder)
    assert parity.apart(parity.whole(found), found.logits) < TOLERANCE


@folders
def test_a_cache_gives_the_same_log_probs(folder: Path):
    found = parity.read(folder)
    before = parity.grow._cache_size()
    assert parity.apart(parity.cached(found), found.logits) < TOLERANCE
    assert parity.grow._cache_size() - before <= 1, "lengths vary, shapes must not"


@folders
def test_import_then_export_is_bit_equal(folder: Path):
    found = parity.read(folder)
    assert parity.exported(folder, found) == parity.tensors(folder)
    assert found.config.to_hf() == json.loads((folder / "config.json").read_text())
    files = to_files(found.config, found.params)
    again_config, again = from_files(files.__getitem__, list(files), "again")
    assert again_config == found.config and params_digest(again) == params_digest(found.params)
    assert ("lm_head.weight" in load(files["model.safetensors"])) == (not found.config.tie_word_embeddings)


def test_every_family_is_there():
    assert {described(name)["architectures"][0] for name in NAMES} == set(FAMILIES)


def without(config: DecoderConfig) -> dict[str, DecoderConfig]:
    """The configuration with each thing that it has left out, or moved, one at a time."""
    out: dict[str, DecoderConfig] = {}

    def changed(name: str, **values: Any) -> None:
        out[name] = dataclasses.replace(config, **values)

    for switch in dataclasses.fields(config.switches):
        if getattr(config.switches, switch.name) != switch.default:
            changed(switch.name, switches=dataclasses.replace(config.switches, **{switch.name: switch.default}))
    for name in ("rope_scaling", "local_rope_theta", "query_scalar", "attention_softcap", "final_softcap"):
        if getattr(config, name) is not None:
            changed(name, **{name: None})
    if config.windows:
        changed("windows", windows=())
        for by in (-1, 1):
            changed(f"windows {by:+}", windows=tuple(w and w + by for w in config.windows))
        changed("which layers have windows", windows=config.windows[::-1])
    changed("rope_theta", rope_theta=config.rope_theta * 1.1)
    changed("rms_norm_eps", rms_norm_eps=1e-6)
    return out


@pytest.mark.slow
@folders
def test_each_switch_is_needed(folder: Path):
    found = parity.read(folder)
    for name, config in without(found.config).items():
        if name == "which layers have windows" and config.windows == found.config.windows:
            continue
        assert parity.apart(parity.whole(found, config), found.logits) > 10 * TOLERANCE, name


@folders
def test_each_tensor_shows(folder: Path):
    found = parity.read(folder)
    flat = dict(flatten(found.params))
    draw = np.random.default_rng(0)
    for name, value in flat.items():
        by = draw.normal(0, 0.05, value.shape).astype(np.float32)
        moved = dataclasses.replace(found, params=nest(flat | {name: value + by}))
        assert parity.apart(parity.whole(moved), found.logits) > TOLERANCE, name


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "gemma2", "gemma3"])
def test_fresh_weights_of_a_family_start_as_norms_that_change_nothing(name: str):
    config, _ = load_folder(NAMES[name])
    held = init_params(config, 0)["model"]["norm"]["weight"]
    assert (np.asarray(held) == (0.0 if config.switches.unit_offset else 1.0)).all()


def test_both_ways_of_writing_gemma_3_rope_are_read():
    new = described("gemma3")
    old = {k: v for k, v in new.items() if k not in ("rope_parameters", "layer_types", "_sliding_window_pattern")}
    old |= {"rope_theta": 300.0, "rope_local_base_freq": 20.0, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    assert DecoderConfig.from_hf(old | {"sliding_window_pattern": 6}) == DecoderConfig.from_hf(new)
    assert DecoderConfig.from_hf(old) == DecoderConfig.from_hf(new)


def test_what_gemma_configs_leave_out_has_the_value_of_transformers():
    left_out = (
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "tie_word_embeddings",
        "sliding_window",
        "head_dim",
    )
    config = DecoderConfig.from_hf({k: v for k, v in described("gemma2").items() if k not in left_out})
    assert (config.attention_softcap, config.final_softcap, config.head_dim) == (50.0, 30.0, 256)
    assert config.tie_word_embeddings and config.windows == (4096, None, 4096, None)
    assert DecoderConfig.from_hf(described("qwen2") | {"tie_word_embeddings": None}).tie_word_embeddings is False


def test_qwen_windows_are_off_unless_asked_for():
    given = {k: v for k, v in described("qwen2_windowed").items() if k != "layer_types"}
    assert DecoderConfig.from_hf(given).windows == (None, 7, 7)
    assert DecoderConfig.from_hf(given | {"use_sliding_window": False}).windows == ()


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        (
            "gemma3",
            {"architectures": ["Gemma3ForConditionalGeneration"]},
            "architecture Gemma3ForConditionalGeneration",
        ),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping to 50"),
        ("gemma2", {"hidden_activation": "relu"}, "hidden_activation to 'relu'"),
        ("gemma2", {"sliding_window": None}, "sliding_window is None"),
        ("gemma2", {"layer_types": ["full_attention"]}, "1 kinds for 4 layers"),
        ("gemma2", {"layer_types": ["full_attention"] * 3 + ["chunked_attention"]}, "the kind 'chunked_attention'"),
        ("qwen3", {"attention_bias": True}, "attention_bias to True"),
        ("qwen2", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("llama3", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 'rope_type "dynamic"'),
        ("llama_linear", {"rope_parameters": {"rope_type": "linear"}}, "linear rope settings lack 'factor'"),
        (
            "gemma3",
            {"rope_parameters": {"sliding_attention": {"rope_type": "yarn"}, "full_attention": {}}},
            'rope_type "yarn" of sliding_attention',
        ),
    ],
)
def test_what_we_do_not_compute_is_refused_in_a_sentence(name: str, change: dict[str, Any], sentence: str):
    with pytest.raises(RequestError, match=sentence):
        DecoderConfig.from_hf(described(name) | change)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qwen2", "model.layers.1.self_attn.k_proj.bias"),
        ("qwen3", "model.layers.0.self_attn.q_norm.weight"),
        ("gemma2", "model.layers.3.post_feedforward_layernorm.weight"),
    ],
)
def test_a_missing_or_misshapen_tensor_of_a_family_is_named(name: str, tensor: str):
    files = {path.name: path.read_bytes() for path in NAMES[name].iterdir()}
    held = load(files["model.safetensors"])
    for changed, sentence in (
        ({k: v for k, v in held.items() if k != tensor}, f"lacks the tensor {tensor}"),
        (held | {tensor: np.zeros(3, np.float32)}, f"the tensor {tensor} has the shape"),
        (held | {"model.extra": np.zeros(3, np.float32)}, r"holds the tensor model\.extra"),
    ):
        given = files | {"model.safetensors": save(changed)}
        with pytest.raises(RequestError, match=sentence):
            from_files(given.__getitem__, list(given), "the/folder")
