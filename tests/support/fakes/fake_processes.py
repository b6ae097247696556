"""Stand-ins for our processes: they keep the contract with the store and the supervisor, and learn nothing."""

import argparse
import hashlib
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from models.tokenizer import DESCRIPTION, ByteTokenizer
from schemas import keys
from schemas.evaluation import EvaluationReport, EvaluationSpec
from schemas.ledger import Record, RecordMetadata
from schemas.manifest import (
    CheckpointManifest,
    Numerics,
    PolicyManifest,
    Probe,
    RLManifest,
    RLSpec,
    StageManifest,
    WarmUpSpec,
    WeightsRef,
    Window,
)
from storage import pulse
from storage.control import beat, read_window, register_worker
from storage.ledger import append, read_entry
from storage.objects import ObjectExists, ObjectStore, find
from storage.open import open_store
from storage.process import emit, run_process, stop_requested
from storage.pulse import turn
from storage.rows import read_tasks

NUMERICS = Numerics(jax="0", jaxlib="0", xla_flags="", device_kind="cpu", device_count=1, cores=1)
METRICS = {"staleness": 1.0, "mismatch_kl": 0.01}
SHAPE_AND_TOKENIZER = {
    "config.json": b'{"max_position_embeddings": 512}', DESCRIPTION: ByteTokenizer().to_files()[DESCRIPTION],
}  # fmt: skip
"""What a later run reads of the weights that it starts from."""


def weights(prefix: str, origin: str) -> WeightsRef:
    return WeightsRef(prefix=prefix, sha256=hashlib.sha256(prefix.encode()).hexdigest(), origin=origin)


def warm_up(args: argparse.Namespace) -> None:
    store = open_store(args.root)
    spec = WarmUpSpec.from_bytes(store.get(args.spec).data, args.spec)
    emit("warm_up", step=1, steps=1, loss=1.0, tokens_per_second=10.0)
    if stop_requested():
        return
    folder = keys.stage(spec.stage, spec.key)
    manifest = StageManifest(
        stage=spec.stage, key=spec.key, config={}, inputs=spec.inputs, weights=weights(f"{folder}/weights/0", folder),
        code="0", started=0, ended=1,
    )  # fmt: skip
    store.create(keys.stage_manifest(spec.stage, spec.key), manifest.to_bytes())


def worker(args: argparse.Namespace) -> None:
    store = open_store(args.root)
    state = register_worker(store, args.base, worker=f"w{os.getpid()}", host="here", pid=os.getpid())
    if os.environ.get("FAKE_WORKER") == "raises":
        raise ValueError(f"a bug of process {os.getpid()} at {state!r}")
    emit("worker", worker=state.worker, version=0, in_flight=1, trajectories=0, rollouter_idle_ratio=0.5)
    while not turn():
        window = read_window(store, args.base)
        if window is not None and window[0].closed:
            break
        time.sleep(0.05)
    beat(
        store, args.base, state.model_copy(update={"state": "left", "counters": {"idle_seconds": 1.0, "seconds": 4.0}})
    )


def open_window(store: ObjectStore, base: str) -> None:
    window = Window(version=0, step=0, limit=9, low=0, ended=(), closed=False, learner="x")
    store.put(keys.window(base), window.to_bytes())


def write_ledger(store: ObjectStore, spec: RLSpec, base: str, steps: int) -> tuple[int, str]:
    """Steps that train nothing, up to `steps`; returns the next index and the head."""
    index, head = 0, ""
    while (entry := read_entry(store, base, index)) is not None:
        index, head = index + 1, entry.digest
    for step in range(index, steps):
        metadata = RecordMetadata(
            step=step, kind="step", version=step, updates=0, learner="x", config_digest="", prng="", previous=head,
            parent=spec.initial.sha256,
        )  # fmt: skip
        head = append(store, base, step, Record(metadata, ()))
    return max(index, steps), head


def pause() -> None:
    """As long as a step takes: FAKE_STEP_SECONDS, or what the file FAKE_PACE says by now."""
    began, pace = time.monotonic(), os.environ.get("FAKE_PACE")
    while not turn():
        seconds = float(Path(pace).read_text() if pace else os.environ.get("FAKE_STEP_SECONDS", "0"))
        if time.monotonic() - began >= seconds:
            return
        time.sleep(0.05)


def learner(args: argparse.Namespace) -> int | None:
    store = open_store(args.root)
    spec = RLSpec.from_bytes(store.get(keys.spec(args.base)).data, "spec")
    if os.environ.get("FAKE_LEARNER") == "fails":
        emit("error", kind="RunStopped", message="the loss is not a number at step 0", exit_code=1)
        sys.exit(1)
    steps = spec.config["rl"]["steps"]
    open_window(store, args.base)
    marker = f"{args.base}/died.json"
    if os.environ.get("FAKE_LEARNER") == "dies" and find(store, marker) is None:
        store.put(marker, b"{}")
        os.kill(os.getpid(), signal.SIGKILL)
    for step in range(1, steps + 1):
        if step % spec.config["rl"]["checkpoint_every"] == 0 and step < steps:
            leave_checkpoint(store, args.base, step)
        emit(
            "step", step=step, steps=steps, version=step, reward=0.5, success=0.5, staleness_mean=1.0, staleness_max=2,
            trainer_idle_ratio=0.25, tokens_per_second=100.0,
        )  # fmt: skip
        pause()
        if stop_requested():
            emit("stopped", step=step)
            return 0
    policy, head = leave_checkpoint(store, args.base, steps)
    window = Window(version=steps, step=steps, limit=0, low=0, ended=(), closed=True, learner="x")
    store.put(keys.window(args.base), window.to_bytes())
    leave_manifest(store, args.base, steps, policy, head)
    return 0


def leave_checkpoint(
    store: ObjectStore, base: str, steps: int, metrics: dict[str, float] = METRICS
) -> tuple[WeightsRef, str]:
    """Ledger, policy and checkpoint of steps that trained nothing; returns the weights and the ledger head."""
    spec = RLSpec.from_bytes(store.get(keys.spec(base)).data, "spec")
    index, head = write_ledger(store, spec, base, steps)
    policy = weights(keys.policy_weights(base, steps, "x"), f"{spec.run}@{steps}")
    for name, data in SHAPE_AND_TOKENIZER.items():
        store.put(f"{policy.prefix}/{name}", data)
    published = PolicyManifest(
        version=steps, step=steps, learner="x", weights=policy, dtype="float32", ledger_head=head,
        probe=Probe(tokens=(), logprobs=()), numerics=NUMERICS,
    )  # fmt: skip
    store.put(keys.policy_manifest(base, steps), published.to_bytes())
    checkpoint = CheckpointManifest(
        step=steps, version=steps, learner="x", prefix="x", files={}, params_sha256="", optimizer_sha256="", prng="",
        cursor={}, workers=2, low=0, limit=0, ended=(), admitted={}, recorded=(), unreadable=(), empty_steps=0,
        dispositions={}, metrics=metrics, ledger_index=index, ledger_head=head, parent=None, initial=spec.initial,
        policy=policy, config_digest="", code="0", numerics=NUMERICS,
    )  # fmt: skip
    store.put(keys.checkpoint_manifest(base, steps), checkpoint.to_bytes())
    return policy, head


def leave_manifest(store: ObjectStore, base: str, steps: int, policy: WeightsRef, head: str) -> None:
    manifest = RLManifest(
        key=base.rpartition("rl-")[2], steps=steps, version=steps, checkpoint=steps, weights=policy, ledger_head=head,
        dispositions={}, started=0, ended=1,
    )  # fmt: skip
    store.put(keys.rl_manifest(base), manifest.to_bytes())


def evaluate(args: argparse.Namespace) -> None:
    """Weights of a warm-up solve every second problem, others all (or none, on request)."""
    store = open_store(args.root)
    spec = EvaluationSpec.from_bytes(store.get(args.spec).data, args.spec)
    tasks = read_tasks(store.get(spec.tasks).data, "jsonl", spec.tasks)
    good = 0.0 if os.environ.get("FAKE_CANDIDATE") == "bad" else 1.0
    if spec.checkpoint == os.environ.get("FAKE_EVALUATION_FAILS"):
        emit("error", kind="RunStopped", message=f"no episode of {spec.checkpoint} ends", exit_code=1)
        sys.exit(1)
    emit("evaluation", name=spec.name, done=0, n=len(tasks), success=0.0)
    began = time.monotonic()
    while time.monotonic() - began < float(os.environ.get("FAKE_EVALUATION_SECONDS", "0")):
        time.sleep(0.05)
        if stop_requested():
            return
    scores = {t.id: good if "@" in spec.checkpoint else float(i % 2) for i, t in enumerate(tasks)}
    success = sum(scores.values()) / len(scores)
    emit("evaluation", name=spec.name, done=len(tasks), n=len(tasks), success=success)
    report = EvaluationReport(
        name=spec.name, checkpoint=spec.checkpoint, weights_sha256=spec.weights.sha256, tasks=spec.tasks,
        tasks_sha256=spec.tasks_sha256, temperature=spec.temperature, seed=spec.seed, n=len(tasks), success=success,
        low=max(0.0, success - 0.1), high=min(1.0, success + 0.1), confidence=spec.confidence, reward=success,
        setting=spec.setting, samples=spec.samples, scores=scores, statuses={}, trajectories=spec.output, code="0",
        seconds=1.0,
    )  # fmt: skip
    try:
        store.create(f"{spec.output}/report.json", report.to_bytes())
    except ObjectExists:
        return


def loud(args: argparse.Namespace) -> int:
    """Says a line, complains, and ends with the code that the spec names."""
    emit("log", message="hello")
    print("to stderr", file=sys.stderr)
    if args.spec == "hangs":
        time.sleep(60)
    if args.spec == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        emit("ready")
        time.sleep(60)
    if args.spec == "waits":
        while not stop_requested():
            time.sleep(0.01)
        return 0
    if args.spec == "raises":
        raise ValueError("a bug")
    if args.spec == "mute":
        pulse.beat()
        return 7
    if args.spec == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return int(args.spec)


def member(args: argparse.Namespace) -> int:
    """As `loud`, one of several processes: the spec says what each of them does."""
    args.spec = args.spec.split(",")[int(args.process)]
    return loud(args)


def begin(args: argparse.Namespace) -> int | None:
    """Do what was asked. FAKE_SIGNAL = `WHAT NUMBER FILE`: the first process of that kind sends itself the signal."""
    what, number, marker = (os.environ.get("FAKE_SIGNAL") or "nothing 0 -").split()
    if args.what == what:
        with suppress(FileExistsError):  # two workers begin at once: one of them is the first
            Path(marker).touch(exist_ok=False)
            pulse.beat()
            os.kill(os.getpid(), int(number))
    return globals()[args.what](args)


if __name__ == "__main__":
    if sys.argv[1] == "loud":
        print("not json", flush=True)
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    for name in ("--root", "--base", "--spec", "--index", "--run", "--process", "--address"):
        parser.add_argument(name)
    run_process(begin, parser)
