"""Following the learner's policies: the newest weights are loaded beside running episodes, then swapped in."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from models.config import DecoderConfig
from models.tokenizer import Tokenizer
from rollout.engine import Engine
from rollout.probe import Prover
from schemas import keys
from schemas.errors import RunStopped
from schemas.manifest import PolicyManifest, Probe, WeightsRef
from storage.objects import ObjectMissing, ObjectStore
from storage.pulse import busy

LoadWeights = Callable[[ObjectStore, WeightsRef], tuple[DecoderConfig, Any, Tokenizer]]
"""`models.stored.load_weights`, or a stand-in."""


def announced(load: LoadWeights, seconds: float) -> LoadWeights:
    """The same, announced to the supervisor as work of at most `seconds`."""

    def loaded(store: ObjectStore, ref: WeightsRef) -> tuple[DecoderConfig, Any, Tokenizer]:
        with busy("loading weights", seconds):
            return load(store, ref)

    return loaded


@dataclass(frozen=True)
class Policy:
    """Weights of one version, in memory."""

    version: int
    config: DecoderConfig
    params: Any
    tokenizer: Tokenizer
    probe: Probe | None = None
    """By which an engine proves that it holds them; None for weights that no learner has published."""


def load_policy(store: ObjectStore, base: str, version: int, load: LoadWeights) -> Policy | None:
    """The policy of a version, through its pointer. None where its files have been removed: ask for a newer one.

    Blocking. Raises RunStopped where the pointer is missing though the window names the version.
    """
    key = keys.policy_manifest(base, version)
    try:
        manifest = PolicyManifest.from_bytes(store.get(key).data, key)
    except ObjectMissing as error:
        raise RunStopped(
            f"the window names policy {version}, but {key} is missing: restore it or start anew"
        ) from error
    try:
        config, params, tokenizer = load(store, manifest.weights)
    except ObjectMissing:
        return None
    return Policy(version, config, params, tokenizer, manifest.probe)


class PolicyFollower:
    """Keeps an engine at the newest policy. One load at a time, in a thread; `news` is called when it is done."""

    def __init__(
        self,
        store: ObjectStore,
        base: str,
        engine: Engine,
        load: LoadWeights,
        prover: Prover,
        *,
        drain: bool,
        news: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._base, self._engine, self._load = store, base, engine, load
        self._prover, self._drain, self._news, self._clock = prover, drain, news, clock
        self._loading: asyncio.Task[Policy | None] | None = None
        self._waiting: Policy | None = None
        self._behind_since: float | None = None
        self.behind_seconds = 0.0
        """Time during which the window named a newer policy than the engine's."""

    @property
    def draining(self) -> bool:
        """Whether a loaded policy waits for running episodes to end."""
        return self._drain and self._waiting is not None

    async def follow(self, version: int, in_flight: int) -> bool:
        """One look: begin loading `version` if it is new, swap what was loaded. Returns whether the engine has it.

        EngineUnproved where the engine does not compute what the learner does with the new weights.
        """
        self._collect()
        if self._waiting is not None and (in_flight == 0 or not self._drain):
            await self._swap(self._waiting)
            self._waiting = None
        newest = max(self._engine.version, self._waiting.version if self._waiting else -1)
        if version > newest and self._loading is None:
            load = asyncio.to_thread(load_policy, self._store, self._base, version, self._load)
            self._loading = asyncio.ensure_future(load)
            self._loading.add_done_callback(lambda _: self._news())
        self._count(version)
        return self._engine.version >= version

    async def _swap(self, policy: Policy) -> None:
        await self._engine.update_weights(policy.params, policy.version)
        if policy.probe is not None:
            await self._prover.update(policy.version, policy.probe)

    def _collect(self) -> None:
        if self._loading is not None and self._loading.done():
            policy, self._loading = self._loading.result(), None
            self._waiting = policy or self._waiting

    def _count(self, version: int) -> None:
        now = self._clock()
        if self._behind_since is not None:
            self.behind_seconds += now - self._behind_since
        self._behind_since = now if self._engine.version < version else None

    async def close(self) -> None:
        """Wait for a load in progress; it can't be interrupted."""
        if self._loading is not None:
            await asyncio.wait({self._loading})
