"""Where a run's weights come from when they are not made from scratch: `model.path`.

A weights folder is copied into the store under the digest of its files; a checkpoint or the champion is there already.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schemas.config import Run
from schemas.digest import digest, sha256
from schemas.errors import RequestError
from schemas.manifest import Parent, RunManifest, WeightsRef
from schemas.promotion import Promotion
from storage.audit_downstream import made_here
from storage.audit_runs import find_checkpoint
from storage.objects import ObjectExists, ObjectStore, find
from storage.open import open_source
from tasks import registry
from tasks.request import Request

_CHECKPOINT = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,99})@(\d+)")
_WANTED = (".json", ".safetensors", ".txt", ".jinja")
Folder = tuple[list[str], Callable[[str], bytes]]


def check_initial(request: Request) -> WeightsRef | None:
    """Refuse a `model.path` that names nothing usable, before anything is written.

    Returns the weights that it names by now; those of a folder that is not imported yet have no prefix.
    """
    path, store = request.config.model.path, request.store
    if path is None:
        return None
    if path == "champion":
        champion = read_champion(store, request.config)
        if champion is None:
            _check_reference(request.config)
            return None
        registry.check_present(store, f"the champion {champion.ref}", champion.weights)
        return champion.weights
    if match := _CHECKPOINT.fullmatch(path):
        weights = find_checkpoint(store, match[1], int(match[2]))[1].policy
        registry.check_present(store, path, weights)
        return weights
    names, read = _folder(path, request.folder)
    stored = find(store, _pointer(_files_digest(names, read)))
    return WeightsRef.model_validate_json(stored.data) if stored else _checked(store, "", names, read, path)


def _check_reference(config: Run) -> None:
    """A first warm-up by dpo can't start from scratch."""
    if config.warm_up and config.warm_up[0].kind == "dpo":
        raise RequestError(
            f"the warm_up stage `{config.warm_up[0].name}` (dpo) has its reference policy missing: "
            f"{config.registry_name}/{config.promotion.channel} has no champion yet, so it would start from scratch"
        )


def resolve(request: Request) -> tuple[WeightsRef | None, tuple[Parent, ...]]:
    """The weights that the run starts from and what they are to it; none where they are made from scratch."""
    path, store = request.config.model.path, request.store
    if path is None:
        return None, ()
    if path == "champion":
        champion = read_champion(store, request.config)
        return (champion.weights, (_parent("champion", champion.ref, champion.weights),)) if champion else (None, ())
    if match := _CHECKPOINT.fullmatch(path):
        weights = find_checkpoint(store, match[1], int(match[2]))[1].policy
        return weights, (_parent("checkpoint", path, weights),)
    weights = _import(store, path, request.folder)
    return weights, (_parent("weights", path, weights),)


def keeps_initial(standing: RunManifest, config: Run) -> bool:
    """Whether a run that is started again goes on from the weights that it started from.

    A folder's files may have changed; a checkpoint's can't, and the champion is kept from the run's first start.
    """
    path = config.model.path
    is_folder = path not in (None, "champion") and "@" not in (path or "")
    return standing.config.get("model") == config.model.model_dump(mode="json") and not is_folder


def read_config_json(request: Request) -> dict[str, Any] | None:
    """The `config.json` of the weights that the request starts from; None where they are made from scratch."""
    files = initial_files(request)
    return json.loads(files[1]("config.json")) if files else None


def initial_files(request: Request) -> Folder | None:
    """Names and reader of the files that the request starts from; None where weights are made from scratch."""
    path, store = request.config.model.path, request.store
    if path is None or (path == "champion" and read_champion(store, request.config) is None):
        return None
    if path == "champion" or _CHECKPOINT.fullmatch(path):
        weights, _ = resolve(request)
        assert weights is not None  # a checkpoint has some, and there is a champion
        prefix = f"{weights.prefix}/"
        return [k.removeprefix(prefix) for k in store.list(prefix)], lambda name: store.get(f"{prefix}{name}").data
    return _folder(path, request.folder)


def read_champion(store: ObjectStore, config: Run) -> Promotion | None:
    """The champion of the configuration's channel."""
    return registry.read(store, config.registry_name, config.promotion.channel)[0].champion


def _parent(kind: str, ref: str, weights: WeightsRef) -> Parent:
    return Parent.model_validate({"kind": kind, "ref": ref, "sha256": weights.sha256})


def _folder(path: str, base: Path) -> Folder:
    """Names and reader of a weights folder: a path, or a URL of a store with a prefix."""
    scheme, separator, rest = path.partition("://")
    if separator and scheme != "file":
        root, _, prefix = rest.partition("/")
        store = open_source(f"{scheme}://{root}")
        names = [k.removeprefix(f"{prefix}/") for k in store.list(f"{prefix}/")]
        return _usable(names, path), lambda name: store.get(f"{prefix}/{name}").data
    folder = Path("/" + rest.lstrip("/")) if separator else base / Path(path).expanduser()
    if not folder.is_dir():
        raise RequestError(
            f"model.path = `{path}`: there is no weights folder {folder} (nor is it RUN@STEP or champion){_maker(base)}"
        )
    names = [item.name for item in folder.iterdir() if item.is_file()]
    return _usable(names, path), lambda name: (folder / name).read_bytes()


def _maker(base: Path) -> str:
    """How to make the folder, where a script `build.py` stands beside the configuration."""
    script = base / "build.py"
    return f"; make it with `python {script}`" if script.is_file() else ""


def _usable(names: list[str], path: str) -> list[str]:
    wanted = sorted(n for n in names if n.endswith(_WANTED) and "/" not in n)
    if "config.json" not in wanted:
        raise RequestError(f"model.path = `{path}` has no config.json: give a folder in Hugging Face layout")
    return wanted


def _files_digest(names: list[str], read: Callable[[str], bytes]) -> str:
    return digest({name: sha256(read(name)) for name in names})[:16]


def _pointer(files: str) -> str:
    return f"weights/{files}/imported.json"


def _import(store: ObjectStore, path: str, base: Path) -> WeightsRef:
    """Copy a weights folder into the store once; the pointer comes last."""
    names, read = _folder(path, base)
    files = _files_digest(names, read)
    stored = find(store, _pointer(files))
    if stored is not None:
        return WeightsRef.model_validate_json(stored.data)
    prefix = f"weights/{files}/files"
    ref = _checked(store, prefix, names, read, path)
    for name in names:
        store.put(f"{prefix}/{name}", read(name))
    try:
        store.create(_pointer(files), ref.model_dump_json().encode())
    except ObjectExists:
        return WeightsRef.model_validate_json(store.get(_pointer(files)).data)
    return ref


def _checked(store: ObjectStore, prefix: str, names: list[str], read: Callable[[str], bytes], path: str) -> WeightsRef:
    """The weights of a folder. Those that this store made, such as an export, keep their origin and their lineage."""
    sha256 = _check_weights(names, read, path)
    return WeightsRef(prefix=prefix, sha256=sha256, origin=made_here(store, sha256) or path)


def _check_weights(names: list[str], read: Callable[[str], bytes], path: str) -> str:
    """Read every tensor and the tokenizer; returns the parameters' digest. RequestError names what is wrong."""
    from models.chat import chat_format
    from models.tokenizer import tokenizer_from_files
    from models.weights import from_files, params_digest

    config, params = from_files(read, names, path)
    tokenizer = tokenizer_from_files(read, names, path)
    if tokenizer.vocab_size > config.vocab_size:
        raise RequestError(
            f"{path}: the tokenizer has ids up to {tokenizer.vocab_size - 1}, but config.json says vocab_size = "
            f"{config.vocab_size}: use the tokenizer that belongs to these weights"
        )
    try:
        chat_format(tokenizer, ())
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error
    return params_digest(params)
