"""What weights were trained on, through all their ancestors, and that nobody measures them on it.

The walk reads one small document for each ancestor: an RL stage's spec names its tasks and the weights that it started
from, a warm-up's manifest its demonstrations. It ends at weights from outside, of which nothing is known.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from schemas import keys
from schemas.errors import RequestError
from schemas.manifest import StageManifest, WeightsRef
from storage.audit_runs import find_checkpoint, read_spec
from storage.documents import read_document
from storage.objects import ObjectStore, find
from tasks.fingerprints import DataSet, Kind, of_stored, shared

_RL = re.compile(r"(runs/[^/]+/rl-[^/]+)/policies/.*")
_STAGE = re.compile(r"(stages/[^/]+)(/.*)?")
_CHECKPOINT = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)@(\d+)")


@dataclass(frozen=True)
class Trained:
    """A data file that weights were trained on."""

    words: str
    """What it was to whom, for people."""
    key: str
    sha256: str
    kind: Kind


def check_unseen(store: ObjectStore, ref: str, weights: WeightsRef, measured: Iterable[DataSet], why: str) -> None:
    """RequestError if these weights, called `ref`, or an ancestor were trained on a task of a measured set.

    `why`: what the weights are to the run, in words that follow `ref`.
    """
    sets = list(measured)
    for trained in trained_on(store, weights):
        seen = of_stored(store, trained.key, trained.sha256, trained.kind, f"{trained.words} ({trained.key})")
        for one in sets:
            if found := shared(one, seen):
                raise RequestError(
                    f"{one.words} and {seen.words} share {found}: {ref}, {why}, was made by training on it, so it "
                    f"can't be measured on it; take it out of {one.words}, or start from other weights"
                )


def trained_on(store: ObjectStore, weights: WeightsRef) -> list[Trained]:
    """The data files of the weights and of all their ancestors, nearest first, each once."""
    found: dict[tuple[str, Kind], Trained] = {}
    waiting, known = [weights], {weights}
    while waiting:
        for item in _step(store, waiting.pop(0)):
            if isinstance(item, Trained):
                found.setdefault((item.sha256, item.kind), item)
            elif item not in known:
                waiting.append(item)
                known.add(item)
    return list(found.values())


def _step(store: ObjectStore, weights: WeightsRef) -> Iterator[Trained | WeightsRef]:
    """What made the weights: data files, and the weights before them."""
    if match := _RL.fullmatch(weights.prefix):
        yield from _rl(store, match[1])
    elif match := _STAGE.fullmatch(weights.prefix) or _STAGE.fullmatch(weights.origin):
        yield from _warm_up(store, match[1])
    elif (match := _CHECKPOINT.fullmatch(weights.origin)) and find(store, keys.run_manifest(match[1])) is not None:
        yield from _rl(store, find_checkpoint(store, match[1], int(match[2]), weights.sha256)[0])


def _rl(store: ObjectStore, base: str) -> Iterator[Trained | WeightsRef]:
    spec = read_spec(store, base)
    yield Trained(f"the training tasks of run {spec.run}", spec.tasks, spec.tasks_sha256, "tasks")
    yield spec.initial


def _warm_up(store: ObjectStore, stage: str) -> Iterator[Trained | WeightsRef]:
    manifest = read_document(store, StageManifest, f"{stage}/manifest.json")
    for parent in manifest.inputs if manifest else ():
        if parent.kind in ("data", "log"):
            yield Trained(f"the demonstrations of {stage}", parent.ref, parent.sha256, "warm_up")
        elif parent.kind not in ("code", "run"):
            yield WeightsRef(prefix=parent.ref, sha256=parent.sha256, origin=parent.ref)
