"""Following a learner by its adapters: a policy that was trained with `[lora]` is stored whole, with them beside it.

The weights that they are added to are read once; after that an update is the adapters alone, which have no digest of
their own: the policy's probe proves the sum.
"""

import json
from typing import Any

from models.config import DecoderConfig
from models.tokenizer import Tokenizer
from rollout.adapted import CONFIG, TENSORS, Adapted
from rollout.policy import LoadWeights
from schemas import keys
from schemas.errors import RunStopped
from schemas.manifest import WeightsRef
from storage.objects import ObjectMissing, ObjectStore


class AdapterPolicies:
    """A `LoadWeights` whose parameters are `Adapted`: with the base the first time, without it later."""

    def __init__(self, load: LoadWeights, initial: WeightsRef) -> None:
        self._load, self._initial = load, initial
        self._known: tuple[DecoderConfig, Tokenizer] | None = None

    def __call__(self, store: ObjectStore, ref: WeightsRef) -> tuple[DecoderConfig, Any, Tokenizer]:
        """ObjectMissing if the adapters have been removed; RunStopped if they belong to other weights."""
        files = {name: store.get(keys.adapter(ref.prefix, name)).data for name in (CONFIG, TENSORS)}
        self._check(files[TENSORS], f"{store.url}/{keys.adapter(ref.prefix, TENSORS)}")
        if self._known is not None:
            config, tokenizer = self._known
            return config, Adapted(files, None), tokenizer
        config, base, tokenizer = self._base(store)
        self._known = config, tokenizer
        return config, Adapted(files, base), tokenizer

    def _base(self, store: ObjectStore) -> tuple[DecoderConfig, Any, Tokenizer]:
        try:
            return self._load(store, self._initial)
        except ObjectMissing as error:
            raise RunStopped(
                f"the weights at {store.url}/{self._initial.prefix}, which this run's adapters are added to, are gone: "
                f"restore them, or set rollout.vllm.adapters = false"
            ) from error

    def _check(self, tensors: bytes, where: str) -> None:
        found = _base_digest(tensors, where)
        if found != self._initial.sha256:
            raise RunStopped(
                f"the adapters at {where} belong to weights of digest {found[:12]}, but this run starts from "
                f"{self._initial.sha256[:12]}: they were changed; restore them or start a new run"
            )


def _base_digest(tensors: bytes, where: str) -> str:
    """What a safetensors file says that its adapters were trained on."""
    try:
        size = int.from_bytes(tensors[:8], "little")
        return str(json.loads(tensors[8 : 8 + size])["__metadata__"]["base_sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunStopped(f"the adapters at {where} are damaged: restore them or start a new run") from error
