"""What the gate decided: numbered documents below the gate's key, never overwritten. The newest one counts.

A decision is written before the pointer moves. One that was refused for what was found is final for its run; a wait for
a person that ran out decides nothing and leaves no decision.
"""

from schemas import keys
from schemas.promotion import Channel, GateDecision
from storage.objects import ObjectExists, ObjectStore


def newest(store: ObjectStore, gate_base: str) -> tuple[str, GateDecision] | None:
    """The newest decision below a gate's folder with its key, if there is any."""
    numbers = _numbers(store, gate_base)
    if not numbers:
        return None
    key = keys.gate_decision(gate_base, numbers[-1])
    return key, GateDecision.from_bytes(store.get(key).data, key)


def write(store: ObjectStore, gate_base: str, decision: GateDecision) -> str:
    """Keep a decision as the newest one; returns its key."""
    number = max(_numbers(store, gate_base), default=0) + 1
    while True:
        key = keys.gate_decision(gate_base, number)
        try:
            store.create(key, decision.to_bytes())
            return key
        except ObjectExists:
            number += 1


def is_settled(channel: Channel, key: str, decision: GateDecision) -> bool:
    """Whether nothing is left to do: refused, in the channel's history, or about what was the champion already."""
    if not decision.promoted or decision.weights_sha256 == decision.baseline_sha256:
        return True
    return any(entry.decision == key for entry in channel.history)


def _numbers(store: ObjectStore, gate_base: str) -> list[int]:
    found = store.list(f"{gate_base}/decisions/")
    return [int(key.rpartition("/")[2].removesuffix(".json")) for key in found]
