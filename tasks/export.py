"""Weights out of the store: a folder in Hugging Face layout with a model card, whole or not at all.

The folder is filled under another name beside its place, what was written is read back and compared with the digest
that the checkpoint's manifest names, and only then does it get its name.
"""

import json
from pathlib import Path

from schemas.errors import HeadraceError, RunStopped
from storage.objects import ObjectStore
from tasks.export_source import Source
from tasks.model_card import model_card
from tasks.out_folder import check_out, filled
from tasks.registry import check_present

GENERATION = "generation_config.json"


def export(store: ObjectStore, source: Source, out: Path) -> list[str]:
    """Write the folder; returns the names of its files. RequestError where `out` holds anything, RunStopped where the
    weights are not what their manifest says."""
    check_out(out)
    with filled(out) as folder:
        try:
            parameters = _copy(store, source, folder)
        except HeadraceError:
            check_present(store, source.ref, source.weights)  # they may have expired meanwhile
            raise
        if not (folder / GENERATION).exists():
            (folder / GENERATION).write_text(json.dumps(_generation(source, folder), indent=2) + "\n")
        (folder / "README.md").write_text(model_card(store, source, parameters), encoding="utf-8")
        return sorted(item.name for item in folder.iterdir())


def _copy(store: ObjectStore, source: Source, folder: Path) -> int:
    """The weights' files; returns the number of parameters."""
    for key in store.list(f"{source.weights.prefix}/"):
        path = folder / key.removeprefix(f"{source.weights.prefix}/")
        path.parent.mkdir(exist_ok=True)  # adapters lie in a folder of their own
        path.write_bytes(store.get(key).data)
    return _verify(source, folder)


def _verify(source: Source, folder: Path) -> int:
    """The number of parameters that were written; RunStopped unless their digest is the manifest's."""
    from models.pure import flatten
    from models.weights import load_folder, params_digest

    _, params = load_folder(folder)
    found = params_digest(params)
    if found != source.weights.sha256:
        raise RunStopped(
            f"the weights of {source.ref} have digest {found[:12]}, but {source.weights.sha256[:12]} was recorded: "
            f"they were changed or damaged in {source.weights.prefix} and are not exported"
        )
    return sum(int(value.size) for value in flatten(params).values())


def _generation(source: Source, folder: Path) -> dict[str, object]:
    """How the checkpoint sampled while it was trained, in the names of transformers."""
    from models.tokenizer import tokenizer_from_files

    rollout, described = source.config.rollout, json.loads((folder / "config.json").read_text())
    names = [item.name for item in folder.iterdir()]
    tokenizer = tokenizer_from_files(lambda name: (folder / name).read_bytes(), names, str(folder))
    found: dict[str, object] = {"do_sample": rollout.temperature > 0, "max_new_tokens": rollout.max_tokens_per_turn}
    if rollout.temperature > 0:
        found |= {"temperature": rollout.temperature, "top_p": rollout.top_p, "top_k": rollout.top_k}
    ids = {"eos_token_id": described.get("eos_token_id"), "pad_token_id": tokenizer.special("<|pad|>")}
    return found | {name: value for name, value in ids.items() if value is not None}
