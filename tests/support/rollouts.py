"""A small RL stage for workers: calculator tasks, the byte tokenizer, a script that uses the tool, made-up weights."""

import json
from collections.abc import Sequence
from typing import Any

from models.config import DecoderConfig
from models.tokenizer import ByteTokenizer, Tokenizer
from schemas import keys, seeds
from schemas.config import Run
from schemas.data import Task
from schemas.digest import sha256
from schemas.manifest import PolicyManifest, Probe, RLSpec, WeightsRef, Window
from schemas.trajectory import Trajectory
from storage import control
from storage.memory import MemoryStore
from storage.objects import ObjectMissing, ObjectStore, find
from storage.shards import END_MARKER, decode_shard
from support.configuration import small
from support.protocol import NUMERICS

BASE = "runs/test/rl-0123"
NO_PROBE = Probe(tokens=(), logprobs=())
TOKENIZER = ByteTokenizer()
USER, ASSISTANT, TOOL, CALL, END = (
    TOKENIZER.special(f"<|{n}|>") or 0 for n in ("user", "assistant", "tool", "call", "end")
)
SHAPE = DecoderConfig(263, 8, 16, 1, 1, 1, 8, 256)
TASKS = [Task(f"t{i}", f"{10 + i}*{20 + i}=?", str((10 + i) * (20 + i))) for i in range(5)]


def solve(stream: Sequence[int], seed: int, version: int) -> list[int]:
    """Calls the calculator with the question, then repeats its result."""
    text = list(stream)
    if TOOL in text:
        return [*text[len(text) - text[::-1].index(TOOL) : -2], END]
    return [CALL, *text[1 : text.index(END) - 2], END]


def give_up(stream: Sequence[int], seed: int, version: int) -> list[int]:
    return [*b"?", END]


def config(**changes: dict[str, Any]) -> Run:
    """The small run for real workers: a script that uses the tool, and short waits; sections merged with `changes`."""
    rollout: dict[str, Any] = {
        "script": "scripts:solve",
        "poll_seconds": 0.01,
        "heartbeat_seconds": 0.05,
        "max_concurrency": 4,
    }
    sections = {"environment": {"tools": ["calculator"]}, "rollout": rollout}
    for section, values in changes.items():
        sections[section] = sections.get(section, {}) | values
    return small(**sections)


def put_tasks(store: ObjectStore, tasks: Sequence[Task] = TASKS) -> tuple[str, str]:
    """Store a task file; returns its key and digest."""
    lines = [json.dumps({"id": t.id, "prompt": t.prompt, "answer": t.answer} | t.extra) for t in tasks]
    data = "\n".join(lines).encode()
    key = keys.data(sha256(data), "jsonl")
    store.put(key, data)
    return key, sha256(data)


def stage(
    run: Run, folder: str = ".", tasks: Sequence[Task] = TASKS, *, published: bool = True
) -> tuple[MemoryStore, RLSpec]:
    """A store with the stage's tasks and (if `published`) policy 0, and the stage's specification."""
    store = MemoryStore("test")
    key, digest = put_tasks(store, tasks)
    if published:
        publish(store, 0)
    spec = RLSpec(
        run="test",
        key="0123",
        config=run.model_dump(mode="json"),
        folder=folder,
        seed=7,
        initial=WeightsRef(prefix="initial", sha256="0" * 64),
        tasks=key,
        tasks_sha256=digest,
        environment_sha256="",
    )
    return store, spec


def publish(store: ObjectStore, version: int, probe: Probe = NO_PROBE) -> None:
    """Write a policy as the learner does: weights, then the pointer."""
    prefix = keys.policy_weights(BASE, version, "L")
    store.put(f"{prefix}/weights", str(version).encode())
    manifest = PolicyManifest(
        version=version,
        step=version,
        learner="L",
        weights=WeightsRef(prefix=prefix, sha256="0" * 64),
        dtype="float32",
        ledger_head="",
        probe=probe,
        numerics=NUMERICS,
    )
    store.create(keys.policy_manifest(BASE, version), manifest.to_bytes())


def load(store: ObjectStore, ref: WeightsRef) -> tuple[DecoderConfig, Any, Tokenizer]:
    """Stands in for `models.stored.load_weights`."""
    if find(store, f"{ref.prefix}/weights") is None:
        raise ObjectMissing(ref.prefix)
    return SHAPE, {"weights": store.get(f"{ref.prefix}/weights").data}, TOKENIZER


def put_window(store: ObjectStore, limit: int, *, version: int = 0, low: int = 0, **changes: Any) -> None:
    """Move the window as the learner does."""
    values: dict[str, Any] = {"step": version, "ended": (), "closed": False, "learner": "L"} | changes
    window = Window(version=version, limit=limit, low=low, **values)
    store.put(keys.window(BASE), window.to_bytes())


def sealed(store: ObjectStore, base: str = BASE) -> list[Trajectory]:
    """Every row of every shard."""
    shards = [store.get(k).data for k in store.list(f"{base}/trajectories/")]
    return [row for data in shards if data != END_MARKER for row in decode_shard(data)[1]]


def workers(store: ObjectStore) -> list[Any]:
    """The heartbeats of all registered workers."""
    found, number = [], 0
    while (state := control.read_worker(store, BASE, number)) is not None:
        found.append(state[0])
        number += 1
    return found


def task_of(group: int, seed: int = 7) -> Task:
    return TASKS[seeds.task_index(seed, len(TASKS), group)]
