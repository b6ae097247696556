"""Weights in the store: a folder of Hugging Face files under a key prefix, verified by digest when read."""

from typing import Literal

from models.config import DecoderConfig
from models.pure import Params
from models.tokenizer import Tokenizer, tokenizer_from_files
from models.weights import as_read, from_files, params_digest, to_files
from schemas.errors import RunStopped
from schemas.manifest import WeightsRef
from storage.objects import ObjectMissing, ObjectStore


def load_weights(store: ObjectStore, ref: WeightsRef) -> tuple[DecoderConfig, Params, Tokenizer]:
    """Shape, parameters and tokenizer of stored weights. RunStopped if their digest is not the one that was recorded.

    Raises ObjectMissing if the files have been removed (old policies are): look up the pointer again.
    """
    where = f"{store.url}/{ref.prefix}"
    names = [k.removeprefix(f"{ref.prefix}/") for k in store.list(f"{ref.prefix}/")]
    if not names:
        raise ObjectMissing(f"the weights at {where} have been removed")

    def read(name: str) -> bytes:
        return store.get(f"{ref.prefix}/{name}").data

    config, params = from_files(read, names, where)
    found = params_digest(params)
    if found != ref.sha256:
        raise RunStopped(
            f"the weights at {where} have digest {found[:12]}, but {ref.sha256[:12]} was recorded: "
            f"they were changed or damaged; restore them or start a new run"
        )
    return config, params, tokenizer_from_files(read, names, where)


def save_weights(
    store: ObjectStore,
    prefix: str,
    config: DecoderConfig,
    params: Params,
    tokenizer: Tokenizer,
    dtype: Literal["float32", "bfloat16"],
    origin: str,
) -> WeightsRef:
    """Store weights in `dtype` with their tokenizer, and the reference that names them.

    The digest is of the parameters as a reader gets them, so after rounding to `dtype`.
    """
    files = to_files(config, params, dtype) | tokenizer.to_files()
    for name in sorted(files):
        store.put(f"{prefix}/{name}", files[name])
    return WeightsRef(prefix=prefix, sha256=params_digest(as_read(params, dtype)), origin=origin)
