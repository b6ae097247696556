"""Manifests: the small JSON documents that commit stages, policies, checkpoints, evaluations and promotions.

A manifest is written last, so its presence says that what it names is whole.
"""

import math
from typing import Any, Literal

from schemas.base import Document, Section


class Numerics(Section):
    """What decides the bytes of a computation: replay is bitwise only where all of it is equal."""

    jax: str
    jaxlib: str
    xla_flags: str
    device_kind: str
    device_count: int
    cores: int
    """Usable processor cores (affinity), since they change the order of sums on CPU."""
    mesh: tuple[int, int, int] = (1, 1, 1)
    """Sizes of data, fsdp and tensor (`rl.mesh`)."""
    processes: int = 1
    """Processes that share the devices (`rl.processes`)."""


class WeightsRef(Section):
    """Weights in the store: a folder of HF files (config.json, safetensors, tokenizer files)."""

    prefix: str
    """Key prefix of the folder, without a trailing slash."""
    sha256: str
    """Digest of the parameters as `models.weights.params_digest` computes it."""
    origin: str = ""
    """What made them, for people and audits: `stages/…`, `RUN@STEP`, a registry entry, or a path outside the store."""


class Parent(Section):
    """Something that an artifact was made from."""

    kind: Literal["run", "stage", "checkpoint", "champion", "data", "log", "weights", "code"]
    """`log`: a selection of trajectories of the `run` beside it, whose digest is its ledger head."""
    ref: str
    sha256: str = ""


class RunManifest(Document):
    """`run.json`: what the run is. Its stages are found by key; its state by their manifests."""

    run: str
    config: dict[str, Any]
    """The resolved configuration."""
    config_digest: str
    seed: int
    """The seed that sampling stages use: the configuration's, else derived from the run's name."""
    folder: str = ""
    """The folder of the configuration file: the user's own modules are imported from there."""
    data: dict[str, str] = {}
    """Setting (`rl.tasks`, `warm_up.<name>`, …) → key of its file in the store."""
    parents: tuple[Parent, ...] = ()
    initial: WeightsRef | None = None
    """Weights that RL starts from when they are not made by this run's warm-up (a champion, a checkpoint)."""
    code: str
    commit: str = ""
    python: str
    created: float
    """Unix seconds."""
    schedule: str = ""
    """The schedule that fired this run, if any."""
    stages: dict[str, str] = {}
    """Stage name → key, as planned when the run was last started."""
    state: Literal["running", "finished", "stopped", "failed"] = "running"
    reason: str = ""
    """Why it stopped or failed, in a sentence."""
    rl_keys: tuple[str, ...] = ()
    """Keys of every RL stage this run has opened, newest last."""
    flow_runs: tuple[str, ...] = ()
    """Ids of the Prefect flow runs that drove it, newest last."""
    takeovers: int = 0
    """Times a later firing of its schedule went on with it because its driver had died."""


class Lease(Document):
    """Who drives a run, holds a schedule or plays an evaluation.

    Expired when its generation did not change for `seconds`.
    """

    owner: str
    host: str
    pid: int
    processes: str = ""
    """Names the processes that `pid` is one of: this boot's, in this container."""
    seconds: float
    beat: int
    """Counts renewals."""
    released: bool = False
    run: str = ""


class StageManifest(Document):
    """A finished stage: what it was made from and what it made."""

    stage: str
    key: str
    config: dict[str, Any]
    inputs: tuple[Parent, ...]
    weights: WeightsRef | None = None
    metrics: dict[str, float] = {}
    code: str
    numerics: Numerics | None = None
    started: float
    ended: float


class RLSpec(Document):
    """What the learner and the workers of one RL stage agree on; create-if-absent."""

    run: str
    key: str
    config: dict[str, Any]
    """The resolved run configuration."""
    folder: str
    """The folder of the configuration file: the user's own modules are imported from there."""
    seed: int
    initial: WeightsRef
    """Version 0."""
    tasks: str
    """Key of the task file (JSONL) as stored for this run."""
    tasks_sha256: str
    environment_sha256: str
    """Digest of the user's environment module; empty for a built-in environment."""


class RLManifest(Document):
    """A finished RL stage."""

    key: str
    steps: int
    version: int
    checkpoint: int
    """Step of the last checkpoint."""
    weights: WeightsRef
    ledger_head: str
    dispositions: dict[str, int]
    started: float
    ended: float


class Window(Document):
    """How far rollouts may run ahead, and the newest policy. Only the learner writes it; it only moves forward."""

    version: int
    """The newest published policy."""
    step: int
    limit: int
    """Exclusive: only groups with a lower number may be claimed."""
    low: int
    """The lowest group that has not ended."""
    ended: tuple[int, ...]
    """Ended groups above `low`."""
    closed: bool
    learner: str


class Claim(Document):
    """Who rolls out a numbered group."""

    group: int
    owner: str
    owners: tuple[str, ...]
    """Every worker that has held it, oldest first."""
    takeovers: int
    first_claimed: float
    """Unix seconds of the first claim: deadlines count from it."""
    limit_version: int
    """The window's version that the first claimer had read."""


class WorkerState(Document):
    """A worker's registration and heartbeat, one object for its life."""

    worker: str
    number: int
    host: str
    pid: int
    state: Literal["running", "left"]
    beat: int
    """Counts heartbeats, so that every one changes the object."""
    version: int
    """The policy version in use; -1 before the first."""
    next_seq: int
    counters: dict[str, float]
    """trajectories, failed, abandoned, tokens, seconds, idle_seconds, stale_policy_seconds, …"""


class Probe(Section):
    """Token ids and the learner's log-probs for them, by which an engine proves that it holds these weights."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-prob of tokens[1:] given what comes before."""

    def gap(self, other: "Probe") -> float:
        """Largest difference between two probes' log-probs; infinite where they are of other tokens or not finite."""
        if self.tokens != other.tokens or len(self.logprobs) != len(other.logprobs):
            return math.inf
        gaps = [abs(a - b) for a, b in zip(self.logprobs, other.logprobs, strict=True)]
        return max(gaps, default=0.0) if all(map(math.isfinite, gaps)) else math.inf


class PolicyManifest(Document):
    """A published policy; names the copy that stands."""

    version: int
    step: int
    learner: str
    weights: WeightsRef
    dtype: str
    ledger_head: str
    probe: Probe
    numerics: Numerics
    """Where it was computed: replay is bitwise only there."""


class CheckpointManifest(Document):
    """A snapshot of the learner from which replay can start."""

    step: int
    version: int
    learner: str
    prefix: str
    """Key prefix of the Orbax files."""
    files: dict[str, str]
    """Relative name → SHA-256."""
    params_sha256: str
    """Of all parameters; where adapters are trained, merged into the weights `initial`."""
    optimizer_sha256: str
    """Of the optimizer's arrays, and of adapters."""
    prng: str
    cursor: dict[str, int]
    """Per worker the lowest shard number that may hold a row without a disposition."""
    workers: int
    """Registered workers known."""
    low: int
    """The lowest group that has not ended."""
    limit: int
    ended: tuple[int, ...]
    """Ended groups at or above `low`."""
    admitted: dict[int, int]
    """For every open group below the limit: the version at which the limit passed it."""
    recorded: tuple[tuple[str, int, int], ...]
    """Rows (worker, shard, row) at or above the cursor that have a disposition."""
    unreadable: tuple[tuple[str, int], ...]
    """Shards at or above the cursor that are recorded as unreadable."""
    empty_steps: int
    dispositions: dict[str, int]
    """Trajectories by disposition so far."""
    metrics: dict[str, float] = {}
    """Means over all updates so far, weighted by trained trajectories: `staleness`, `mismatch_kl`, `reward`, `success`,
    …; `rows`: how many trajectories they were taken over."""
    figures: dict[str, float] = {}
    """What the last step measured, but for its times: the next ledger record has it too."""
    ledger_index: int
    """The ledger index of the next record."""
    ledger_head: str
    parent: int | None
    """Step of the checkpoint before it."""
    initial: WeightsRef
    policy: WeightsRef
    """The published policy of the same version: what is evaluated and promoted."""
    config_digest: str
    code: str
    numerics: Numerics


class WarmUpSpec(Document):
    """What a warm-up process is to do."""

    stage: str
    key: str
    config: dict[str, Any]
    """The resolved run configuration; the stage is the entry of `warm_up` with this name."""
    seed: int
    initial: WeightsRef | None
    """Weights to start from; none: from scratch."""
    data: str
    """Key of its data in the store."""
    data_sha256: str
    inputs: tuple[Parent, ...]
    """What the stage's key hashes beside its configuration; written into its manifest."""
