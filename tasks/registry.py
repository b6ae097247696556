"""The registry: a model's channels. Each is one object with its whole history, appended to by compare-and-swap.

Whoever loses the swap reads again and judges anew, so that nothing is appended to a history that nobody looked at. A
write whose answer was lost is recognised by its entry.
"""

import getpass
import os
import socket
import time
from collections.abc import Callable

from schemas import keys
from schemas.errors import RequestError, RunStopped
from schemas.manifest import WeightsRef
from schemas.promotion import Channel, Promotion
from storage.documents import read_generation
from storage.expired import check_weights
from storage.objects import GenerationMismatch, ObjectStore

PRODUCTION, CANDIDATE = "production", "candidate"


def read(store: ObjectStore, name: str, channel: str) -> tuple[Channel, int]:
    """A channel and its generation; an empty one, at generation 0, where there is none."""
    found = read_generation(store, Channel, keys.channel(name, channel))
    return found or (Channel(name=name, channel=channel, history=()), 0)


def standing(store: ObjectStore, name: str, channel: str) -> Channel:
    """A channel that has a champion; RequestError names the channels that there are."""
    found = read(store, name, channel)[0]
    if found.champion is None:
        raise RequestError(f"nothing was ever promoted to {name}/{channel} in {store.url}: {_known(store)}")
    return found


def append(store: ObjectStore, name: str, channel: str, make: Callable[[Channel], Promotion]) -> Promotion:
    """Append what `make` makes of the channel as it stands; it is asked again whenever somebody else was first, and
    raises where the entry no longer fits. Returns the entry that was appended."""
    tried: list[Promotion] = []
    while True:
        found, generation = read(store, name, channel)
        mine = [entry for entry in tried if entry in found.history]
        if mine:
            return mine[0]
        tried.append(make(found))
        changed = found.model_copy(update={"history": (*found.history, tried[-1])})
        try:
            store.swap(keys.channel(name, channel), changed.to_bytes(), generation)
        except GenerationMismatch:
            continue
        return tried[-1]


def note_candidate(store: ObjectStore, name: str, ref: str, weights: WeightsRef, ledger_head: str) -> None:
    """Let the channel `candidate` name what RL ended with, once."""

    def known(channel: Channel) -> bool:
        return any((e.ref, e.weights.sha256) == (ref, weights.sha256) for e in channel.history)

    def make(channel: Channel) -> Promotion:
        return Promotion(
            ref=ref,
            kind="candidate",
            by=person(),
            weights=weights,
            ledger_head=ledger_head,
            report="",
            previous=channel.champion.ref if channel.champion else "",
            reason="RL ended with it",
            time=time.time(),
        )

    if not known(read(store, name, CANDIDATE)[0]):
        append(store, name, CANDIDATE, make)


def rollback(store: ObjectStore, name: str, channel: str, to: str | None, reason: str) -> Promotion:
    """Append an entry that goes back to an earlier champion: to `to` (`RUN@STEP`), else to the one before.

    RequestError where the history has no such entry or its weights are gone; RunStopped where somebody else moved the
    pointer meanwhile.
    """
    champion = standing(store, name, channel).champion

    def make(found: Channel) -> Promotion:
        if found.champion is None or found.champion != champion:
            now = found.champion.ref if found.champion else "nothing"
            raise RunStopped(f"{now} became champion of {name}/{channel} meanwhile: look at its history and ask again")
        target = _earlier(found, to)
        check_present(store, target.ref, target.weights)
        changes = {"kind": "rollback", "by": person(), "approved_by": "", "reason": reason, "time": time.time()}
        return target.model_copy(update=changes | {"previous": found.champion.ref})

    return append(store, name, channel, make)


def check_present(store: ObjectStore, ref: str, weights: WeightsRef) -> None:
    """RequestError unless the weights' files are in the store and stay there."""
    check_weights(store, weights)
    if not store.list(f"{weights.prefix}/", limit=1):
        raise RequestError(f"the weights of {ref} are no longer in {store.url} ({weights.prefix} is empty)")


def person() -> str:
    """Who does this: `user@host`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _earlier(channel: Channel, to: str | None) -> Promotion:
    """The entry to go back to. Going back again goes on from where the last rollback led."""
    history, champion, where = channel.history, channel.history[-1], f"{channel.name}/{channel.channel}"
    same = [e.weights.sha256 == champion.weights.sha256 for e in history]
    others = [e for e, one in zip(history, same, strict=True) if not one]
    if to is not None:
        found = [e for e in others if e.ref == to]
        if not found:
            refs = ", ".join(dict.fromkeys(e.ref for e in others)) or "none"
            raise RequestError(f"{where} can't go back to `{to}`: its earlier champions are {refs}")
        return found[-1]
    first = max(i for i, e in enumerate(history) if e.kind != "rollback" and same[i])
    before = [e for e in history[:first] if e in others]
    if not before:
        raise RequestError(f"{where} has no champion before {champion.ref}: there is nothing to go back to")
    return before[-1]


def _known(store: ObjectStore) -> str:
    keys_found = [key.removeprefix("registry/").removesuffix(".json") for key in store.list("registry/")]
    return f"its channels are {', '.join(keys_found)}" if keys_found else "it has no champion at all"
