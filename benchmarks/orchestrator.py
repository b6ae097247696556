"""Thousands of episodes that wait on a tool: a whole rollout worker, against the bare waits under `asyncio.gather`.

Ours is what a worker process does, in this process, with the scripted engine: it reads the window, claims groups, plays
each episode through agent, chat format, environment and tool, scores it, and seals the rows as shards in a folder
store, with heartbeats beside it. `--peer` names a Python that has `google-tunix`, whose orchestrator then plays the
same load.
"""

import argparse
import asyncio
import gc
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import waiting_tool
from measure import report
from side import Side

from models.config import DecoderConfig
from models.tokenizer import ByteTokenizer
from rollout import garbage
from rollout.worker import Worker
from schemas import keys
from schemas.config_text import check
from schemas.digest import sha256
from schemas.manifest import Numerics, PolicyManifest, Probe, RLSpec, WeightsRef, Window
from storage.control import read_window
from storage.folder import FolderStore
from storage.objects import ObjectStore
from storage.shards import decode_shard

BASE, HOME, GROUP = "runs/waiting/rl-0123", str(Path(__file__).parent), 8
SHAPE = DecoderConfig(263, 8, 16, 1, 1, 1, 8, 256)
WEIGHTS = WeightsRef(prefix="initial", sha256="0" * 64)
NUMERICS = Numerics(jax="", jaxlib="", xla_flags="", device_kind="cpu", device_count=1, cores=1)
WALL_AIM, RATE_AIM, FLAT_AIM = 6.0, 0.7, 0.1
"""Seconds at most for 2,000 episodes of three seconds; share of the bare waits' rate; growth of memory."""
Point = tuple[int, int, float]
"""Episodes finished, episodes in flight, and resident megabytes."""


def resident() -> float:
    """Megabytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def configuration(concurrency: int) -> dict[str, Any]:
    shape = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    return {
        "name": "waiting",
        "model": {"architecture": shape | {"num_key_value_heads": 1}},
        "environment": {"tools": ["waiting_tool:Wait"]},
        "rollout": {
            "engine": "scripted", "script": "waiting_tool:policy", "max_concurrency": concurrency,
            "heartbeat_seconds": 0.1,
        },
        "rl": {"tasks": "tasks.jsonl", "steps": 1, "group_size": GROUP, "optimizer": {"learning_rate": 0.1}},
        "evaluation": {"tasks": "held.jsonl"},
        "promotion": {"tasks": "gate.jsonl"},
    }  # fmt: skip


def stage(store: ObjectStore, episodes: int, concurrency: int, seconds: float) -> RLSpec:
    """A stage whose window is open for so many episodes, on a policy that needs no weights."""
    config = check(configuration(concurrency), "orchestrator.py")
    data = "\n".join(json.dumps({"id": f"t{i}", "prompt": str(seconds), "answer": "done"}) for i in range(64)).encode()
    store.put(keys.data(sha256(data), "jsonl"), data)
    policy = PolicyManifest(
        version=0, step=0, learner="L", weights=WEIGHTS, dtype="float32", ledger_head="",
        probe=Probe(tokens=(), logprobs=()), numerics=NUMERICS,
    )  # fmt: skip
    store.create(keys.policy_manifest(BASE, 0), policy.to_bytes())
    window = Window(version=0, limit=-(-episodes // GROUP), low=0, step=0, ended=(), closed=False, learner="L")
    store.create(keys.window(BASE), window.to_bytes())
    assert read_window(store, BASE) is not None
    return RLSpec(
        run="waiting", key="0123", config=config.model_dump(mode="json"), folder=HOME, seed=7, initial=WEIGHTS,
        tasks=keys.data(sha256(data), "jsonl"), tasks_sha256=sha256(data), environment_sha256="",
    )  # fmt: skip


def ours(episodes: int, concurrency: int, seconds: float) -> list[Point]:
    """A worker plays so many episodes and leaves; where its memory stood at every heartbeat."""
    points: list[Point] = []
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        store = FolderStore(Path(folder))
        spec = stage(store, episodes, concurrency, seconds)

        def beaten(_: str, **figures: Any) -> None:
            points.append((figures["trajectories"], figures["in_flight"], resident()))

        def finished() -> bool:
            return bool(points) and points[-1][0] >= episodes

        worker = Worker(store, BASE, spec, load=lambda *_: (SHAPE, {}, ByteTokenizer()), report=beaten, stop=finished)
        asyncio.run(worker.run())
        _check(store, episodes)
    return points


def _check(store: ObjectStore, episodes: int) -> None:
    """That every episode was played to its end and sealed."""
    rows = [row for key in store.list(f"{BASE}/trajectories/") for row in decode_shard(store.get(key).data)[1]]
    good = sum(row.status == "succeeded" and row.reward == 1.0 and len(row.turns) == 4 for row in rows)
    if not len(rows) == good == episodes:
        raise SystemExit(f"{episodes} episodes gave {len(rows)} rows, {good} of them as they should be")


def bare(episodes: int, seconds: float) -> list[Point]:
    """The limit: nothing but the waits."""
    points: list[Point] = [(0, 0, resident())]

    async def episode() -> None:
        for _ in range(waiting_tool.CALLS):
            await asyncio.sleep(seconds)

    async def look() -> None:
        await asyncio.sleep(seconds / 2)
        points.append((0, episodes, resident()))

    async def all_of_it() -> None:
        await asyncio.gather(look(), *(episode() for _ in range(episodes)))

    asyncio.run(all_of_it())
    return points


def timed(call: Callable[[], list[Point]]) -> tuple[dict[str, float], list[Point]]:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    points = call()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}, points


def _each(points: list[Point]) -> float:
    """Kilobytes that one waiting episode takes: memory when most are in flight over memory at the start."""
    _, flight, most = max(points, key=lambda point: (point[1], -point[0]))
    return (most - points[0][2]) * 1000 / flight


def _line(side: str, episodes: int, taken: dict[str, float], points: list[Point]) -> dict[str, Any]:
    line = {"side": side, "episodes": episodes, "wall_seconds": taken["wall"], "cpu_seconds": taken["cpu"]}
    line |= {"episodes_per_second": episodes / taken["wall"], "cpu_ms_per_episode": taken["cpu"] * 1000 / episodes}
    line |= {"load": round(os.getloadavg()[0], 1)}
    return line | ({"kb_per_waiting_episode": _each(points)} if points else {})


def compared(episodes: int, seconds: float, rounds: int, peer: Side | None) -> tuple[list[dict], dict[str, bool]]:
    """All sides in turn; of each the median round by wall seconds, and the first by memory, which is then kept."""
    sides: dict[str, Callable[[], tuple[dict[str, float], list[Point]]]] = {
        "bare gather": lambda: timed(lambda: bare(episodes, seconds)),
        "ours": lambda: timed(lambda: ours(episodes, episodes, seconds)),
    }
    if peer is not None:
        sides["peer"] = lambda: (peer.ask(episodes=episodes, seconds=seconds), [])
    seen = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            seen[name].append(side())
    middle = {name: sorted((t for t, _ in found), key=lambda t: t["wall"])[rounds // 2] for name, found in seen.items()}
    rates = {name: episodes / taken["wall"] for name, taken in middle.items()}
    lines = [_line(name, episodes, taken, seen[name][0][1]) for name, taken in middle.items()]
    wall, share = middle["ours"]["wall"], rates["ours"] / rates["bare gather"]
    meets = {
        f"{episodes} episodes in under {WALL_AIM:g} s ({wall:.2f})": wall < WALL_AIM,
        f"at least {RATE_AIM:g} of the bare waits' rate ({share:.2f})": share >= RATE_AIM,
    }
    if peer is not None:
        ahead = rates["ours"] / rates["peer"]
        meets[f"ahead of the peer's orchestrator ({ahead:.2f} times)"] = ahead > 1
    return lines, meets


def flat(episodes: int, concurrency: int, seconds: float) -> tuple[list[dict], dict[str, bool]]:
    """Memory over many episodes, `concurrency` at a time: at each fifth of them, and what the later half added."""
    taken, points = timed(lambda: ours(episodes, concurrency, seconds))
    full = [p for p in points if p[1] >= 0.9 * concurrency] or points
    marks = [next(p for p in reversed(full) if p[0] <= part * episodes // 5 or p is full[0]) for part in range(1, 6)]
    line = _line(f"ours, {concurrency} at a time", episodes, taken, [])
    line["mb_at_fifths"] = [round(megabytes, 1) for _, _, megabytes in marks]
    middle = next((p for p in full if p[0] >= episodes // 2), full[-1])
    growth = full[-1][2] / middle[2] - 1
    aim = f"memory over the later half of {episodes} episodes grows by at most {FLAT_AIM:.0%} ({growth:+.1%})"
    return [line], {aim: growth <= FLAT_AIM}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=2000, help="played at once by each side")
    parser.add_argument("--many", type=int, default=10_000, help="played one after another, by which memory is judged")
    parser.add_argument("--seconds", type=float, default=1.0, help="that one call of the tool waits")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", default="", metavar="PYTHON", help="a Python that has google-tunix")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if not args.peer:
        print("no --peer given: it is left out")
    garbage.spare()  # as a worker process does
    peer = Side(args.peer, "peer_orchestrator.py") if args.peer else None
    lines, meets = compared(args.episodes, args.seconds, args.rounds, peer)
    if peer is not None:
        peer.close()
    more, met = flat(args.many, min(args.episodes, args.many // 5), args.seconds)
    report(lines + more, meets | met, as_json=args.json)


if __name__ == "__main__":
    main()
