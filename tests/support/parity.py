"""How far the decoder is from transformers on checkpoints with reference logits: prints the table of docs/models.md.

PYTHONPATH=.:tests .venv/bin/python -m support.parity
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import deserialize

from models.cache import empty_cache
from models.config import DecoderConfig
from models.pure import Params, apply, extend
from models.weights import load_folder, to_files

FAMILIES = Path(__file__).parents[1] / "models/families"
FOLDERS = sorted(path.parent for path in FAMILIES.glob("*/config.json"))
CHUNKS = (5, 1, 1, 9, 1)
"""How many tokens each call to the cache brings, again and again: longer and shorter than the windows of 7."""

run = jax.jit(apply, static_argnums=0)
grow = jax.jit(extend, static_argnums=0)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A shipped checkpoint, read, with tokens [B, T] and what transformers makes of them: logits [B, T, V]."""

    config: DecoderConfig
    params: Params
    tokens: jax.Array
    logits: np.ndarray


def read(folder: Path) -> Checkpoint:
    config, params = load_folder(folder)
    with np.load(folder / "reference.npz") as held:
        return Checkpoint(config, params, jnp.asarray(held["tokens"], jnp.int32), held["logits"])


def whole(checkpoint: Checkpoint, config: DecoderConfig | None = None) -> np.ndarray:
    """Our logits of the tokens in one pass, by another configuration if one is given."""
    tokens = checkpoint.tokens
    places = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return np.asarray(run(config or checkpoint.config, checkpoint.params, tokens, places, jnp.ones_like(tokens, bool)))


def cached(checkpoint: Checkpoint) -> np.ndarray:
    """Our logits of the tokens, brought to a cache in `CHUNKS`; each row is ahead of the next by one token."""
    config, tokens = checkpoint.config, np.asarray(checkpoint.tokens)
    rows, length = tokens.shape
    out = np.zeros((rows, length, config.vocab_size), np.float32)
    cache, done = empty_cache(config, rows, length + 3), np.zeros(rows, np.int32)
    for step in _steps(length):
        counts = np.minimum(np.maximum(step - np.arange(rows), 1), length - done).astype(np.int32)
        fed = np.zeros((rows, max(CHUNKS)), np.int32)
        for row, count in enumerate(counts):
            fed[row, :count] = tokens[row, done[row] : done[row] + count]
        logits, cache = grow(config, checkpoint.params, fed, cache, done, counts)
        for row, count in enumerate(counts):
            out[row, done[row] : done[row] + count] = logits[row, :count]
        done = done + counts
    return out


def log_probs(logits: np.ndarray) -> np.ndarray:
    return np.asarray(jax.nn.log_softmax(jnp.asarray(logits, jnp.float32)))


def apart(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference of a log-prob."""
    return float(np.abs(log_probs(ours) - log_probs(theirs)).max())


def tensors(folder: Path) -> dict[str, tuple]:
    """Name → dtype, shape and bytes of every tensor in a folder's files."""
    return {name: value for path in sorted(folder.glob("*.safetensors")) for name, value in _entries(path.read_bytes())}


def exported(folder: Path, checkpoint: Checkpoint) -> dict[str, tuple]:
    """The same of what we export in the dtype of the folder."""
    kinds = {kind for kind, _, _ in tensors(folder).values()}
    files = to_files(checkpoint.config, checkpoint.params, "bfloat16" if kinds == {"BF16"} else "float32")
    return dict(_entries(files["model.safetensors"]))


def _entries(data: bytes) -> Iterator[tuple[str, tuple]]:
    return ((name, (e["dtype"], tuple(e["shape"]), bytes(e["data"]))) for name, e in deserialize(data))


def _steps(length: int) -> Iterator[int]:
    """Sizes until even the slowest row, which gets one token at the least, is through."""
    return (CHUNKS[number % len(CHUNKS)] for number in range(length))


def main() -> None:
    print("| checkpoint | import | log-prob, whole pass | log-prob, cache | export |\n| --- | --- | --- | --- | --- |")
    for folder in FOLDERS:
        found = read(folder)
        stored = tensors(folder)
        kinds, files = {kind for kind, _, _ in stored.values()}, len(list(folder.glob("*.safetensors")))
        head = "tied" if found.config.tie_word_embeddings else "untied"
        brought = f"{len(stored)} tensors, {'/'.join(kinds)}, {files} file{'s' * (files > 1)}, {head}"
        equal = "bit-equal" if exported(folder, found) == stored else "DIFFERS"
        print(
            f"| {folder.name} | {brought} | {apart(whole(found), found.logits):.1e}"
            f" | {apart(cached(found), found.logits):.1e} | {equal} |"
        )


if __name__ == "__main__":
    main()
