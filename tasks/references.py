"""What the store's lasting documents refer to: weights in a channel's history, or that a run or RL stage starts from.

Runs and channels are never removed, so neither is anything that they refer to.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from schemas import keys
from schemas.manifest import RLSpec, WeightsRef
from schemas.promotion import Channel, GateDecision
from storage.audit_runs import folders
from storage.documents import read_document
from storage.many import many
from storage.objects import ObjectStore
from tasks.record import read_run


@dataclass(frozen=True)
class References:
    """Everything that may not expire, with the reason in words."""

    weights: Mapping[str, str]
    """Key prefix of weights → who refers to them."""
    decided: Mapping[tuple[str, str], str]
    """(run, weights digest) that a gate took: written before the pointer moves, so the pointer may be about to."""

    def to(self, run: str, weights: WeightsRef) -> str:
        """Who refers to the weights of a checkpoint of this run; empty if nobody does."""
        return self.weights.get(weights.prefix) or self.decided.get((run, weights.sha256), "")


def references(store: ObjectStore) -> References:
    """Read every channel, run, RL stage and gate of the store. RequestError where one can't be understood: what it
    refers to is not known then."""
    weights: dict[str, str] = {}
    decided: dict[tuple[str, str], str] = {}
    for found, these in many(lambda run: _of_run(store, run), folders(store, "runs/")):
        weights, decided = found | weights, these | decided
    for key in store.list("registry/"):
        channel = Channel.from_bytes(store.get(key).data, key)
        for entry in channel.history:
            weights[entry.weights.prefix] = f"in the history of {channel.name}/{channel.channel}"
    return References(weights, decided)


def _of_run(store: ObjectStore, run: str) -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    starts = [ref for ref in (_start(store, run), *_stage_starts(store, run)) if ref is not None]
    decisions = [d for d in _decisions(store, run) if d.promoted]
    return (
        {ref.prefix: f"run {run} starts from it" for ref in starts},
        {(run, d.weights_sha256): f"its gate took it ({d.candidate})" for d in decisions},
    )


def _start(store: ObjectStore, run: str) -> WeightsRef | None:
    manifest = read_run(store, run)
    return manifest.initial if manifest else None


def _stage_starts(store: ObjectStore, run: str) -> Iterator[WeightsRef]:
    for name in folders(store, f"{keys.run(run)}/"):
        key = keys.spec(f"{keys.run(run)}/{name}")
        spec = read_document(store, RLSpec, key) if name.startswith("rl-") else None
        if spec is not None:
            yield spec.initial


def _decisions(store: ObjectStore, run: str) -> Iterator[GateDecision]:
    for key in store.list(f"{keys.run(run)}/gates/"):
        if key.rpartition("/")[0].endswith("/decisions"):
            yield GateDecision.from_bytes(store.get(key).data, key)
