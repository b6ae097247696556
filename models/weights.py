"""Weights to and from Hugging Face folders (`config.json` and safetensors), and the digest that names them.

Files are dealt with as bytes, so they can lie in an object store as well as on a disk.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from models.config import DecoderConfig
from models.pure import Params, flatten, nest, shapes
from schemas.errors import RequestError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
DTYPES = {"F32": np.dtype("<f4"), "BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype("<f2"), "F64": np.dtype("<f8")}

Read = Callable[[str], bytes]


def params_digest(params: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over each tensor's name, dtype, shape and little-endian bytes, in the order of names."""
    digest = hashlib.sha256()
    for name, value in sorted(flatten(params).items()):
        array = _little_endian(np.asarray(value))
        digest.update(f"{name} {array.dtype.name} {list(array.shape)}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def to_files(
    config: DecoderConfig, params: Params, dtype: Literal["float32", "bfloat16"] = "float32"
) -> dict[str, bytes]:
    """`config.json` and `model.safetensors`; equal parameters make equal bytes."""
    tensors = {name: np.ascontiguousarray(_stored(value, dtype)) for name, value in sorted(flatten(params).items())}
    return {
        "config.json": (json.dumps(_described(config, dtype), indent=2) + "\n").encode(),
        SINGLE: save(tensors, {"format": "pt"}),
    }


def as_read(params: Params, dtype: Literal["float32", "bfloat16"]) -> Params:
    """What `from_files` gives back of parameters that `to_files` wrote in `dtype`, without writing them."""
    return nest({name: _stored(value, dtype).astype(np.float32, copy=False) for name, value in flatten(params).items()})


def from_files(read: Read, names: Sequence[str], where: str) -> tuple[DecoderConfig, Params]:
    """The shape and the parameters (NumPy float32) of a Hugging Face folder, in one safetensors file or several.

    `read` gives a file's bytes by its name in the folder, `names` are the files there, and `where` is what the folder
    is called in messages. RequestError where a file or tensor is missing, broken, or not what config.json describes.
    """
    config = _config(read, names, where)
    expected = shapes(config)
    found: dict[str, np.ndarray] = {}
    for file in _weight_files(read, names, where):
        for name, array in _tensors(read(file), f"{where}/{file}"):
            if name in expected:
                found[name] = _checked(name, array, expected[name], f"{where}/{file}")
            elif not _needless(config, name):
                raise RequestError(
                    f"{where}/{file} holds the tensor {name}, which a model of its config.json has no place for:"
                    " use weights of a supported architecture."
                )
    missing = [name for name in expected if name not in found]
    if missing:
        file = INDEX if INDEX in names else SINGLE
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise RequestError(f"{where}/{file} lacks the tensor {missing[0]}{more}: fetch or export the weights again.")
    return config, nest(found)


def load_folder(path: str | Path) -> tuple[DecoderConfig, Params]:
    """`from_files` over a folder on this machine."""
    folder = Path(path)
    if not folder.is_dir():
        raise RequestError(f"there is no weights folder at {folder}: give the path of a Hugging Face folder.")
    names = sorted(item.name for item in folder.iterdir() if item.is_file())
    return from_files(lambda name: (folder / name).read_bytes(), names, str(folder))


def _described(config: DecoderConfig, dtype: str) -> dict[str, Any]:
    """The config with the dtype of its tensors, under the key that it has for it."""
    described = config.to_hf()
    key = "dtype" if "dtype" in described else "torch_dtype"
    return described | {key: dtype}


def _config(read: Read, names: Sequence[str], where: str) -> DecoderConfig:
    try:
        return DecoderConfig.from_hf(_json(read, names, "config.json", where))
    except RequestError as error:
        raise RequestError(f"{where}: {error}" if where not in str(error) else str(error)) from error


def _json(read: Read, names: Sequence[str], name: str, where: str) -> dict[str, Any]:
    if name not in names:
        raise RequestError(f"{where} has no {name}: give a folder in Hugging Face layout.")
    try:
        value = json.loads(read(name))
    except ValueError as error:
        raise RequestError(f"{where}/{name} is not valid JSON ({error}): fetch or export it again.") from error
    if not isinstance(value, dict):
        raise RequestError(f"{where}/{name} must hold a JSON object: fetch or export it again.")
    return value


def _weight_files(read: Read, names: Sequence[str], where: str) -> list[str]:
    """The safetensors files to read, in order."""
    if INDEX not in names:
        if SINGLE not in names:
            raise RequestError(f"{where} has neither {SINGLE} nor {INDEX}: give a folder with safetensors weights.")
        return [SINGLE]
    weight_map = _json(read, names, INDEX, where).get("weight_map")
    if not isinstance(weight_map, dict):
        raise RequestError(f"{where}/{INDEX} has no weight_map: fetch or export it again.")
    files = sorted(set(weight_map.values()))
    for file in files:
        if file not in names:
            tensor = next(name for name, holder in weight_map.items() if holder == file)
            raise RequestError(f"{where} lacks the file {file}, which should hold {tensor}: fetch the weights again.")
    return files


def _tensors(data: bytes, file: str) -> list[tuple[str, np.ndarray]]:
    try:
        entries = deserialize(data)
    except SafetensorError as error:
        raise RequestError(f"{file} is cut short or broken ({error}): fetch or export it again.") from error
    return [(name, _array(name, entry, file)) for name, entry in entries]


def _array(name: str, entry: Mapping[str, Any], file: str) -> np.ndarray:
    kind = DTYPES.get(entry["dtype"])
    if kind is None:
        raise RequestError(
            f"{file}: the tensor {name} is stored as {entry['dtype']}; convert it to one of {', '.join(DTYPES)}."
        )
    return np.frombuffer(entry["data"], kind).reshape(entry["shape"])


def _checked(name: str, array: np.ndarray, shape: tuple[int, ...], file: str) -> np.ndarray:
    if array.shape != shape:
        raise RequestError(
            f"{file}: the tensor {name} has the shape {list(array.shape)}, but config.json asks for {list(shape)}:"
            " the two do not belong together."
        )
    return array.astype(np.float32, copy=False)


def _needless(config: DecoderConfig, name: str) -> bool:
    """Tensors that some exporters write although they can be derived."""
    return name.endswith("rotary_emb.inv_freq") or (config.tie_word_embeddings and name == "lm_head.weight")


def _stored(value: Any, dtype: Literal["float32", "bfloat16"]) -> np.ndarray:
    """A tensor as files hold it; not copied where it is so already."""
    kind = {"float32": np.dtype("<f4"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}[dtype]
    return np.asarray(value).astype(kind, copy=False)


def _little_endian(array: np.ndarray) -> np.ndarray:
    array = np.ascontiguousarray(array)
    return array.astype(array.dtype.newbyteorder("<")) if array.dtype.byteorder == ">" else array
