"""What must hold at every moment of a simulated run, and at its end: each break of it is a Violation."""

import hashlib
import json
from contextlib import suppress
from typing import TYPE_CHECKING

from rollout.claims import Assignment
from schemas import keys
from schemas.ledger import Record, decode
from schemas.manifest import CheckpointManifest, Claim, PolicyManifest, Window, WorkerState
from schemas.trajectory import Trajectory
from storage import audit
from storage.shards import END_MARKER, UnreadableShard
from support.protocol import BASE
from support.simulated_store import remembered

if TYPE_CHECKING:
    from support.simulation import Simulation
    from trainer.learner import AgenticRLLearner

SKEW = 60.0
"""Seconds by which a machine's wall clock may be off, either way."""


class Violation(AssertionError):
    """An invariant of the protocol was broken."""


class Checks:
    """Watches every write of one simulated run."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim, self._run, self._objects = sim, sim.run_config, sim.store._objects
        self._claims: dict[int, tuple[float, Claim]] = {}
        """Group → when it was first claimed, and its claim."""
        self._ended: set[int] = set()
        self.records = 0
        """Ledger records so far."""
        self._sealed: dict[tuple[int, int], float] = {}
        """(group, sample) → when its first successful row was sealed."""
        self._rotted: set[int] = set()
        """Groups of which a shard was damaged."""
        self._beats: dict[str, tuple[float, WorkerState]] = {}
        self._newest: tuple[int, int] = (-1, -1)
        self._behind: dict[str, float] = {}
        """Learner → virtual seconds that it has waited for a step that another has made."""

    def written(self, key: str) -> None:
        """Look at every write as it takes effect."""
        data = self._objects[key].data
        if key == keys.window(BASE):
            self._window(Window.from_bytes(data, key))
        elif key.startswith(f"{BASE}/claims/"):
            self._claim(Claim.from_bytes(data, key))
        elif key.startswith(f"{BASE}/ledger/"):
            self._record(decode(data))
        elif key.startswith(f"{BASE}/trajectories/"):
            for row in _rows(data):
                if not row.failed:
                    self._sealed.setdefault((row.group, row.sample), self._sim.clock.now)
        elif key.startswith(f"{BASE}/workers/"):
            state = WorkerState.from_bytes(data, key)
            self._beats[state.worker] = (self._sim.clock.now, state)

    def rots(self, data: bytes) -> None:
        """A shard of these bytes is about to be damaged."""
        self._rotted |= {row.group for row in _rows(data)}

    def assignment(self, assignment: Assignment, asked: float) -> None:
        """No sample is played whose row was sealed before its group was asked for."""
        for sample in assignment.samples:
            if self._sealed.get((assignment.group, sample), asked) < asked:
                raise Violation(f"sample {sample} of group {assignment.group} is played though it was sealed")

    def orphans(self, observer: str, claims: list[Claim], asked: float) -> None:
        """Nobody is taken for dead who has beaten within the lease, as far as a look that took no time shows."""
        lease, now = self._run.rollout.lease_seconds, self._sim.clock.now
        for claim in claims:
            at, state = self._beats[claim.owner]
            fresh = asked - lease + 1 < at <= asked and now - asked < 1
            if fresh and state.state == "running" and claim.owner != observer:
                raise Violation(f"{claim.owner} is taken for dead {asked - at:.0f} s after its last heartbeat")

    def waits(self, name: str, learner: "AgenticRLLearner", seconds: float) -> None:
        """A learner is about to wait; none waits for a lease though another has written its next record."""
        behind = learner.progress.index < self.records
        self._behind[name] = self._behind.get(name, 0.0) + seconds if behind else 0.0
        if self._behind[name] > self._run.rollout.lease_seconds:
            raise Violation(f"{name} waits for record {learner.progress.index}, which another has written")

    def lost_policy(self, version: int) -> None:
        raise Violation(f"the window names policy {version}, whose weights are gone")

    def _window(self, window: Window) -> None:
        if (window.version, window.limit) < self._newest:
            raise Violation(f"the window went back from {self._newest} to {(window.version, window.limit)}")
        self._newest = (window.version, window.limit)

    def _claim(self, claim: Claim) -> None:
        first, _ = self._claims.get(claim.group, (self._sim.clock.now, claim))
        self._claims[claim.group] = (first, claim)
        rl = self._run.rl
        bound = (rl.max_staleness + 1) * rl.groups_per_batch
        if len(self._claims.keys() - self._ended) > bound:
            raise Violation(
                f"{len(self._claims.keys() - self._ended)} groups are claimed and open, the bound is {bound}"
            )

    def _record(self, record: Record) -> None:
        self.records += 1
        self._ended.update(record.ended_groups())
        if not self._sim.patient:
            return
        late = [g for g in record.ended_groups() if record.metadata.kind == "step" and self._late(g)]
        held_up = any(self._beyond_takeover(g) for g in late)
        for group in late:
            if not (self._beyond_takeover(group) or (held_up and self._only_held_up(group))):
                raise Violation(f"group {group} ended by its deadline alone")

    def _late(self, group: int) -> bool:
        """Whether the deadline of a group may have passed for the learner that ends it."""
        waited = self._sim.clock.now - self._claims[group][0] if group in self._claims else 0.0
        return waited > self._run.rl.group_seconds - 2 * SKEW

    def _beyond_takeover(self, group: int) -> bool:
        """A shard of the group has rotted and its owner may live: if no takeover is left, time alone can end it."""
        return group in self._rotted and self._claims[group][1].takeovers >= self._run.rollout.max_takeovers

    def _only_held_up(self, group: int) -> bool:
        """It waits for nothing of its own, only for the others of its batch: every sample is sealed and readable, or it
        may pass to nobody any more and its owner's death has settled it."""
        sealed = all((group, sample) in self._sealed for sample in range(self._run.rl.group_size))
        given_up = self._claims[group][1].takeovers >= self._run.rollout.max_takeovers
        return given_up or (sealed and group not in self._rotted)

    def end(self) -> None:
        """Nothing lost, nothing twice, staleness within its bound, chain whole, weights those of the ledger."""
        found = audit.verify(self._sim.store, "test")
        if found.violations:
            raise Violation(f"{found.violations[0]}")
        (stage,) = found.stages
        counts = self._sim.counts
        counts.update(stage.dispositions)
        for ending, words in (("unused", "left over at the end"), ("stale", "dropped as stale")):
            if counts[ending]:
                raise Violation(f"{counts[ending]} rows were {words}")
        self._weights()

    def _weights(self) -> None:
        """Every manifest names whole files of its own learner, and a policy is what the ledger trained until then."""
        expected = self._trained()
        for key in self._sim.store.list(f"{BASE}/policies/"):
            if key.endswith("/manifest.json"):
                policy = PolicyManifest.from_bytes(self._objects[key].data, key)
                self._whole(policy.weights.prefix, policy.learner)
                if policy.weights.sha256 != expected[policy.version]:
                    raise Violation(f"policy {policy.version} is not what the ledger trained")
        for key in self._sim.store.list(f"{BASE}/checkpoints/"):
            if key.endswith("/manifest.json"):
                checkpoint = CheckpointManifest.from_bytes(self._objects[key].data, key)
                self._whole(checkpoint.prefix, checkpoint.learner)

    def _whole(self, prefix: str, learner: str) -> None:
        authors = {self._objects[k].data.decode() for k in self._sim.store.list(f"{prefix}/") if k.endswith("author")}
        if authors - {learner}:
            raise Violation(f"{prefix} is torn: {learner} published it, {authors} wrote it")

    def _trained(self) -> list[str]:
        """The digests of versions 0, 1, …, computed from the ledger alone."""
        params, digests = "start", []
        for index in range(self.records):
            record = decode(self._objects[keys.ledger(BASE, index)].data)
            digests.append(hashlib.sha256(params.encode()).hexdigest())
            trained = record.trained()
            if trained:
                batch = json.dumps([[r.row_digest for r in trained], [r.advantage for r in trained]])
                params = hashlib.sha256(f"{params}{batch}".encode()).hexdigest()
        return digests


def _rows(data: bytes) -> list[Trajectory]:
    with suppress(UnreadableShard):
        return [] if data == END_MARKER else remembered(data)[1]
    return []
