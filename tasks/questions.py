"""What the gate asks a person, kept in the store: so anybody with the store can answer a run that waits.

The question is one document. Whoever answers swaps the answer into it; the gate closes it by a swap as well, so an
answer either counts or meets a closed question.
"""

import time

from schemas import keys
from schemas.errors import RequestError
from schemas.promotion import Approval, GateDecision
from storage.audit_runs import folders
from storage.documents import read_document
from storage.objects import GenerationMismatch, ObjectStore, find

LONGEST_REASON = 2000
"""Characters that a person may say to an answer."""


def put(store: ObjectStore, gate_base: str, found: GateDecision, seconds: float) -> bool:
    """Ask about a candidate that passed all else. False where the same was asked and answered, and the driver died
    before it made a decision of it."""
    now = time.time()
    question = Approval(
        candidate=found.candidate,
        weights_sha256=found.weights_sha256,
        reason=found.reason,
        asked=now,
        until=now + seconds,
    )
    key = keys.gate_approval(gate_base)
    while True:
        stored = find(store, key)
        standing = Approval.from_bytes(stored.data, key) if stored else None
        if standing is not None and standing.approved is not None and _same(standing, question):
            return False
        try:
            store.swap(key, question.to_bytes(), stored.generation if stored else 0)
            return True
        except GenerationMismatch:
            continue


def _same(one: Approval, other: Approval) -> bool:
    return (one.candidate, one.weights_sha256, one.reason) == (other.candidate, other.weights_sha256, other.reason)


def read(store: ObjectStore, gate_base: str) -> Approval | None:
    """The question with its answer, if one was ever asked."""
    key = keys.gate_approval(gate_base)
    return read_document(store, Approval, key)


def waiting(store: ObjectStore, run: str) -> Approval | None:
    """The question of a run's gate that is open and unanswered, if there is one."""
    for name in folders(store, f"{keys.run(run)}/gates/"):
        found = read(store, keys.gate(run, name))
        if found is not None and found.open and found.approved is None:
            return found
    return None


def answer(store: ObjectStore, gate_base: str, *, agreed: bool, name: str, why: str = "") -> Approval:
    """Answer the open question; returns it as it stands, with the answer that was first. RequestError where none is
    open."""
    return _change(store, gate_base, approved=agreed, by=name, why=why)


def close(store: ObjectStore, gate_base: str) -> Approval:
    """Take no more answers; returns the question with the answer that it got, if any."""
    found = read(store, gate_base)
    return found if found is not None and not found.open else _change(store, gate_base, open=False)


def _change(store: ObjectStore, gate_base: str, **changes: object) -> Approval:
    key = keys.gate_approval(gate_base)
    while True:
        stored = find(store, key)
        found = Approval.from_bytes(stored.data, key) if stored else None
        if stored is None or found is None or not found.open:
            raise RequestError(f"nobody waits for an approval at {key}")
        if found.approved is not None and "approved" in changes:
            return found
        try:
            changed = found.model_copy(update=changes)
            store.swap(key, changed.to_bytes(), stored.generation)
            return changed
        except GenerationMismatch:
            continue
