"""What is evaluated of a run: where RL started, every k-th checkpoint, and where RL ended.

With `evaluation.every` = k these are the checkpoints whose step is a multiple of k * `rl.checkpoint_every`, as soon as
they are committed; so is the start, once RL has begun. With 0 nothing is evaluated before RL has ended.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from schemas import keys
from schemas.config import Run
from schemas.errors import RequestError
from schemas.manifest import CheckpointManifest, WeightsRef
from storage.expired import check_weights
from storage.objects import ObjectStore
from tasks.figures import Evaluation, figures
from tasks.request import Request


@dataclass(frozen=True)
class Planned:
    """The evaluations whose figures are reported, with their reports where they are made."""

    evaluations: tuple[Evaluation, ...]
    expired: tuple[str, ...]
    """Checkpoints whose weights went before all their figures were made, in sentences."""


def stride(config: Run) -> int:
    """Checkpoints at multiples of so many steps are evaluated; 0: none."""
    return config.evaluation.every * config.rl.checkpoint_every


def planned(request: Request, rl_key: str, start: WeightsRef | None, end: tuple[str, WeightsRef] | None) -> Planned:
    """What the store has by now. `start`: weights of version 0; `end`: `RUN@STEP` and weights, once RL has ended."""
    every = stride(request.config)
    if start is None or not (every or end):
        return Planned((), ())
    found = figures(request, "warm-up", start.origin or start.prefix, start)
    expired: list[str] = []
    for ref, manifest in _between(request, rl_key, every, end[0] if end else ""):
        there = figures(request, f"step {manifest.step}", ref, manifest.policy)
        gone = _why_gone(request.store, manifest.policy) if any(e.report is None for e in there) else ""
        expired += [gone] if gone else []
        found += [e for e in there if e.report is not None or not gone]
    return Planned((*found, *(figures(request, "candidate", *end) if end else ())), tuple(expired))


def _between(request: Request, rl_key: str, every: int, end: str) -> Iterator[tuple[str, CheckpointManifest]]:
    """Every k-th checkpoint with its name, by step. The last one is the end itself."""
    if not every:
        return
    base = keys.rl(request.run, rl_key)
    for key in request.store.list(f"{keys.checkpoints(base)}/"):
        if key.endswith("/manifest.json") and int(key.split("/")[-2]) % every == 0:
            manifest = CheckpointManifest.from_bytes(request.store.get(key).data, key)
            ref = f"{request.run}@{manifest.step}"
            if ref != end:
                yield ref, manifest


def _why_gone(store: ObjectStore, weights: WeightsRef) -> str:
    """What became of weights that have expired; empty where they are there."""
    try:
        check_weights(store, weights)
    except RequestError as error:
        return str(error)
    return ""
