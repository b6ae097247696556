"""Proof that an engine holds the weights that it was given, before anything is sampled with them.

A published policy carries token ids and the learner's log-probs for them. The engine scores the same tokens after each
update; where it differs by more than a tolerance, the worker stops. An update that moves the learner's own log-probs by
no more than that proves nothing about itself and is counted as blind; an engine that ignores many such updates drifts
until it is caught.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from rollout.adapted import Adapted
from rollout.engine import Engine, EngineUnfit
from schemas.manifest import Probe


class EngineUnproved(EngineUnfit):
    """The engine does not compute what the learner does: nothing that it samples may be kept."""


class Prover:
    """Proves one engine, update after update. An engine without weights has nothing to prove and is not counted."""

    def __init__(self, engine: Engine, tolerance: float) -> None:
        self._engine, self._tolerance = engine, tolerance
        self._held: Probe | None = None
        self._passed = self._blind = 0

    async def start(self, params: Any, version: int, probe: Probe) -> None:
        """Prove an engine that holds `params`, then that it follows an update of the output head and one back.

        The update gives every token another number: the same model, which must give the renumbered probe the same
        log-probs. EngineUnproved where it does not, or where the engine holds other weights from the first.
        """
        if not await self._gaps(probe, probe.tokens):
            return
        size = _vocabulary(params)
        others = tuple((t + size // 2) % size for t in probe.tokens)
        unmoved = await self._gaps(probe, others)
        await self._check(probe, probe.tokens, f"policy {version}")
        await self._engine.update_weights(renumbered(params, size // 2), version)
        await self._check(probe, others, f"policy {version} with its tokens renumbered, by which updates are tried out")
        await self._engine.update_weights(params, version)
        await self._check(probe, probe.tokens, f"policy {version} after its tokens were renumbered and back")
        self._count(probe, min(unmoved.values()))

    async def alone(self, params: Any, version: int, count: int) -> None:
        """`start` where no learner has left a probe: `count` tokens, and what the engine itself makes of them."""
        tokens = tuple(i * 7919 % _vocabulary(params) for i in range(count))
        for logprobs in (await self._engine.score(tokens)).values():
            await self.start(params, version, Probe(tokens=tokens, logprobs=logprobs))
            return

    async def update(self, version: int, probe: Probe) -> None:
        """Prove an engine that was just given policy `version`. EngineUnproved where it does not hold it."""
        if await self._check(probe, probe.tokens, f"policy {version}"):
            self._count(probe, self._held.gap(probe) if self._held else np.inf)

    def counters(self) -> dict[str, float]:
        """Updates that were proved, and those too small to be told from none."""
        return {"probe_passed": float(self._passed), "probe_blind": float(self._blind)}

    def _count(self, probe: Probe, moved: float) -> None:
        self._held = probe
        if moved > self._tolerance:
            self._passed += 1
        else:
            self._blind += 1

    async def _check(self, probe: Probe, token_ids: tuple[int, ...], what: str) -> bool:
        """Whether there was something to check."""
        gaps = await self._gaps(probe, token_ids)
        for holder, found in gaps.items():
            if not found <= self._tolerance:
                raise EngineUnproved(
                    f"{holder} does not hold {what}: it gives the probe's tokens log-probs up to {found:.2g} from the "
                    f"learner's, more than rollout.probe_tolerance = {self._tolerance:g}; see docs/engines.md"
                )
        return bool(gaps)

    async def _gaps(self, probe: Probe, token_ids: tuple[int, ...]) -> dict[str, float]:
        """By holder, the largest difference between its log-probs of `token_ids` and those of the probe."""
        scores = await self._engine.score(token_ids)
        return {holder: probe.gap(Probe(tokens=probe.tokens, logprobs=found)) for holder, found in scores.items()}


def renumbered(params: Any, by: int) -> Any:
    """The same model with token i called i + `by` (modulo the vocabulary), in embedding and output head alike.

    Adapters stay, since embeddings have none.
    """
    if isinstance(params, Adapted):
        return replace(params, base=renumbered(params.base, by))
    model = params["model"]
    moved = params | {"model": model | {"embed_tokens": _rolled(model["embed_tokens"], by)}}
    if "lm_head" in params:
        moved["lm_head"] = _rolled(params["lm_head"], by)
    return moved


def _vocabulary(params: Any) -> int:
    whole: Any = params.base if isinstance(params, Adapted) else params
    return whole["model"]["embed_tokens"]["weight"].shape[0]


def _rolled(layer: Any, by: int) -> Any:
    return layer | {"weight": np.roll(np.asarray(layer["weight"]), by, axis=0)}
