"""A rollout worker: claims groups as the window allows, plays them, seals what happened, follows the policy.

It may be killed at any moment: what it sealed counts, the rest is played again by others.
`python -P -m rollout.worker --root URL --base runs/RUN/rl-KEY [--index I] [--folder PATH]` runs one until the window
closes. Any number of them may join and leave; `index` only names a worker and chooses its cores.
"""

import argparse
import asyncio
import os
import socket
import time
import uuid
from collections.abc import Callable
from typing import Any

from models.user_modules import check_same
from rollout import garbage, hooks
from rollout.adapter_policies import AdapterPolicies
from rollout.claims import ClaimBoard
from rollout.counters import Counters
from rollout.heartbeat import Heartbeat, Pulse
from rollout.orchestrator import RolloutOrchestrator
from rollout.policy import LoadWeights, Policy, PolicyFollower, announced, load_policy
from rollout.probe import Prover
from rollout.quarantine import Quarantine
from rollout.sealer import Sealer
from rollout.setup import Identity, Setup, set_up, shard_writer, stored_tasks
from rollout.shift import Shift
from rollout.watched import WatchedEngine
from rollout.window_watch import WindowWatch
from schemas import config_text, keys
from schemas.manifest import RLSpec
from schemas.trajectory import Trajectory
from storage import control, process
from storage.objects import ObjectStore, write_pause
from storage.open import open_store
from storage.pulse import beat, busy

LEFTOVER_SECONDS = 1.0
"""How long hooks of cancelled episodes may take to end before the process goes."""


class Worker:
    """One worker process's work on one RL stage."""

    def __init__(
        self,
        store: ObjectStore,
        base: str,
        spec: RLSpec,
        *,
        load: LoadWeights,
        index: int = 0,
        report: Callable[..., Any] = process.emit,
        stop: Callable[[], bool] = process.stop_requested,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._base, self._spec = store, base, spec
        self._report, self._stop, self._clock = report, stop, clock
        self._config = config_text.check(spec.config, keys.spec(base))
        if self._config.rollout.vllm.adapters:
            load = AdapterPolicies(load, spec.initial)
        self._load = announced(load, self._config.supervision.work_seconds)
        self._tasks = stored_tasks(store, spec.tasks, spec.tasks_sha256)
        self.id = f"w{index}-{uuid.uuid4().hex[:10]}"
        self._counters = Counters(clock)
        self._quarantine = Quarantine(store, base, self._config, self._tasks)
        self._watch = WindowWatch(store, base, self._config.rollout.poll_seconds, clock)
        self._setup: Setup | None = None
        self._engine: WatchedEngine | None = None
        self._sealer: Sealer | None = None
        self._orchestrator: RolloutOrchestrator | None = None
        self._prover: Prover | None = None
        self._follower: PolicyFollower | None = None

    async def run(self) -> None:
        """Work until the window closes, the run ends without this worker, or a stop is asked for."""
        state = await asyncio.to_thread(self._register)
        heart = Heartbeat(self._store, self._base, state, self._pulse, self._report)
        pause = max(self._config.rollout.heartbeat_seconds, write_pause(self._store))
        beating = asyncio.ensure_future(heart.run(pause))
        working = asyncio.ensure_future(self._work())
        try:
            await asyncio.wait({working, beating}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _ended(working)
            await _ended(beating)
            await heart.leave()
        for task in (working, beating):
            if not task.cancelled():
                task.result()

    def _register(self) -> control.WorkerState:
        return control.register_worker(
            self._store, self._base, worker=self.id, host=socket.gethostname(), pid=os.getpid()
        )

    async def _work(self) -> None:
        policy = await self._first_policy()
        if policy is None:
            return
        try:
            shift = await self._prepare(policy)
            del policy  # the engine has weights of its own; a second copy of a real model's is much memory
            await shift.work()
        finally:
            await hooks.settle(LEFTOVER_SECONDS)
            if self._setup is not None:
                with busy("closing the engine", self._config.supervision.work_seconds):
                    await self._setup.close()

    async def _first_policy(self) -> Policy | None:
        """The policy that the window names, once there is one; None if there is nothing to do any more."""
        while not self._turn():
            await self._watch.look()
            window = self._watch.window
            if window is not None and window.closed:
                return None
            if window is not None:
                policy = await asyncio.to_thread(load_policy, self._store, self._base, window.version, self._load)
                if policy is not None:
                    return policy
            await asyncio.sleep(self._watch.due_in)
        return None

    async def _prepare(self, policy: Policy) -> Shift:
        config, identity = self._config, Identity(self._spec.run, self._spec.seed, self.id)
        made = await set_up(config, self._spec.folder, policy, identity, config.rollout.temperature)
        self._setup, self._engine = made, made.engine
        self._prover = Prover(made.engine, config.rollout.probe_tolerance)
        if policy.probe is not None:
            await self._prover.start(policy.params, policy.version, policy.probe)
        self._sealer = Sealer(shard_writer(self._store, self._base, self.id, made.metadata, config))
        self._orchestrator = RolloutOrchestrator(
            made.collector.collect, self._finished,
            max_concurrency=config.rollout.max_concurrency, attempts=config.rollout.attempts,
        )  # fmt: skip
        self._follower = PolicyFollower(
            self._store, self._base, made.engine, self._load, self._prover,
            drain=config.rollout.weight_update == "drain", news=self._orchestrator.wake, clock=self._clock,
        )  # fmt: skip
        board = ClaimBoard(self._store, self._base, self.id, config, self._clock)
        return Shift(
            self._watch, board, self._follower, self._orchestrator, self._sealer, self._counters,
            self._quarantine, config, self._tasks, self._spec.seed, self._turn,
        )  # fmt: skip

    def _turn(self) -> bool:
        """A turn of the loop: a sign of life unless the engine is stuck, and whether to stop."""
        if self._engine is None or self._engine.gets_on():
            beat()
        return self._stop()

    def _finished(self, row: Trajectory) -> None:
        self._counters.finished(row)
        self._quarantine.note(row)
        assert self._sealer is not None  # episodes start after `_prepare`
        self._sealer.add(row)

    def _pulse(self) -> Pulse:
        engine, follower = self._engine, self._follower
        counters = self._counters.values() | (engine.counters() if engine else {})
        counters |= self._prover.counters() if self._prover else {}
        return Pulse(
            version=engine.version if engine else -1,
            next_seq=self._sealer.next_seq if self._sealer else 0,
            in_flight=self._orchestrator.in_flight if self._orchestrator else 0,
            counters=counters | {"stale_policy_seconds": follower.behind_seconds if follower else 0.0},
        )


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has put its things away."""
    task.cancel()
    await asyncio.wait({task})


def main(args: argparse.Namespace) -> None:
    """The process: bind to its cores before JAX is imported, then work."""
    store = open_store(args.root)
    key = keys.spec(args.base)
    spec = RLSpec.from_bytes(store.get(key).data, key)
    spec = spec.model_copy(update={"folder": args.folder or spec.folder})
    config = config_text.check(spec.config, key)
    check_same(config, spec.folder, spec.environment_sha256, spec.run)
    bind(config.rollout.cores, args.index)
    with busy("imports", config.supervision.work_seconds):
        from models.compiling import announce_compilations
        from models.stored import load_weights

    garbage.spare()
    announce_compilations(config.supervision.work_seconds)
    asyncio.run(Worker(store, args.base, spec, load=load_weights, index=args.index).run())


def bind(cores: tuple[tuple[int, ...], ...], index: int) -> None:
    """Bind this process to its share of the cores, where the system can and as far as this machine has them."""
    if cores and hasattr(os, "sched_setaffinity"):
        present = os.sched_getaffinity(0).intersection(cores[index % len(cores)])
        os.sched_setaffinity(0, present or os.sched_getaffinity(0))


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="rollout.worker")
    out.add_argument("--root", required=True)
    out.add_argument("--base", required=True)
    out.add_argument("--index", type=int, default=0)
    out.add_argument("--folder", default="")
    return out


if __name__ == "__main__":
    process.run_process(main, parser())
